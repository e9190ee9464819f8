# CPU:          docker build -t dreamerv3 .
# NVIDIA GPUs:  docker build -t dreamerv3 --build-arg EXTRAS=quickstart,dmc,cuda .
# Run:          docker run --rm -v "$PWD/runs:/runs" dreamerv3 \
#                 --configs quickstart --logdir /runs/cartpole      (with --gpus all on a GPU)

FROM python:3.12-slim

# MuJoCo renders through EGL.
RUN apt-get update \
  && apt-get install --yes --no-install-recommends libegl1 libgl1 \
  && rm -rf /var/lib/apt/lists/*
ENV MUJOCO_GL=egl

ARG EXTRAS=quickstart
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY dreamerv3 dreamerv3
COPY embodied embodied
RUN pip install --no-cache-dir ".[$EXTRAS]"

# The user's number is the usual one of a first account, so that mounted folders can be written.
RUN useradd --create-home --uid 1000 dreamer
USER dreamer
WORKDIR /home/dreamer
ENTRYPOINT ["dreamerv3"]
