#!/bin/sh
# Installs the built wheel with each Python and each pyspark into an environment of its own, and runs smoke.py there.
# With the first Python and each of some pysparks it also runs this repository's tests of the catalog, on this repository.
#
#   scripts/matrix.sh FOLDER BUILDER "PYTHONS" "PYSPARKS" ["PYSPARKS OF THE TESTS"]
#
# PIP_CONSTRAINT may name a file of versions. A Python that this machine lacks is named and fails the run: a matrix with
# holes must not look whole.

set -eu
folder=$1 builder=$2 pythons=$3 pysparks=$4 tested=${5:-}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
rm -rf "$folder/dist"
"$builder" -m build --wheel --no-isolation --outdir "$folder/dist" "$here/.." > /dev/null
wheel=$(ls "$folder"/dist/*.whl)

# Nothing of this repository, and no Python of somebody else's session, may stand in for what the wheel lacks.
unset PYTHONPATH PYTHONHOME SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON VIRTUAL_ENV
failed=
for pyspark in $tested; do
    case " $pysparks " in
    *" $pyspark "*) ;;
    *) failed="$failed pyspark $pyspark is to be tested, and is not among those of the matrix;" ;;
    esac
done
for python in $pythons; do
    # pyenv keeps versions where a PATH does not find them.
    found=$(command -v "$python" || true)
    "${found:-false}" -c '' 2> /dev/null || found=$(ls -d "$HOME/.pyenv/versions/${python#python}".*/bin/"$python" 2> /dev/null | tail -n 1)
    if [ -z "$found" ]; then
        echo "$python: not on this machine" >&2
        failed="$failed $python"
        continue
    fi
    for pyspark in $pysparks; do
        name="$python with pyspark $pyspark"
        home="$folder/env"
        if "$found" -m venv --clear "$home" \
            && "$home/bin/python" -m pip install --quiet --disable-pip-version-check "${wheel}[spark,cli]" "pyspark==$pyspark" \
            && (cd "$folder" && "$home/bin/python" "$here/smoke.py" --spark > "$folder/log" 2>&1 && "$home/bin/lakemerge" --help > /dev/null); then
            echo "$name: fine"
            # Delta has no jar for each of these Sparks. PySpark 4.1 leaves sockets open.
            case "${pythons%% *}: $tested " in
            "$python:"*" $pyspark "*)
                if "$home/bin/python" -m pip install --quiet --disable-pip-version-check "${wheel}[spark,cli,test]" "pyspark==$pyspark" \
                    && "$home/bin/python" -m pip uninstall --quiet --yes delta-spark \
                    && (cd "$here/.." && "$home/bin/python" -m pytest tests/spark/connector -q -m "not long" --one-in 12 -p no:cacheprovider \
                        -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning > "$folder/log" 2>&1); then
                    echo "$name: tests of the catalog: $(tail -n 1 "$folder/log")"
                else
                    echo "$name: tests of the catalog failed" >&2
                    tail -n 40 "$folder/log" >&2 || true
                    failed="$failed $name (tests);"
                fi
                ;;
            esac
        else
            echo "$name: failed" >&2
            tail -n 20 "$folder/log" >&2 || true
            failed="$failed $name;"
        fi
    done
done
rm -rf "$folder/env"
if [ -n "$failed" ]; then
    echo "failed: $failed" >&2
    exit 1
fi
