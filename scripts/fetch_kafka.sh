#!/bin/sh
# fetch_kafka.sh VERSION FOLDER PYTHON: a Kafka broker's jars into FOLDER, by the Ivy that pyspark brings.
set -eu
version=$1 folder=$2 python=$3
jars=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
ivy=$(ls "$jars"/ivy-*.jar)
java -jar "$ivy" -warn -dependency org.apache.kafka kafka_2.13 "$version" -confs default \
    -retrieve "$folder/[artifact]-[revision].[ext]"
