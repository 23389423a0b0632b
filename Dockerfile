# kb's command line, without root and without torch:
#   docker build -t kb . && docker run --rm -v "$PWD:/work:ro" kb check config.yaml --gpu rtx-3090
# Inside a container kb sees the container's own memory limit; for a GPU add --gpus all.
# By its digest, of every platform at once: that of Python 3.12.13, 5 August 2026, in docker-library/repo-info.
FROM python:3.12-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36 AS build
COPY . /source
RUN python -m pip install --quiet --no-cache-dir --require-hashes --requirement /source/ci/requirements/build.txt
RUN python -m pip wheel --quiet --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36
COPY --from=build /wheels /wheels
COPY ci/requirements/run.txt /wheels/run.txt
RUN python -m pip install --quiet --no-cache-dir --require-hashes --requirement /wheels/run.txt
RUN python -m pip install --quiet --no-cache-dir --no-index --no-deps /wheels/*.whl
RUN rm -r /wheels && useradd --create-home kb
USER kb
WORKDIR /work
ENTRYPOINT ["kb"]
CMD ["--help"]
