#!/bin/sh
# Succeeds when the Java that Spark would start is version 17 or 21 (what Spark 4 supports); else
# says on stderr what to install and fails. JAVA_HOME goes before PATH, as in Spark's own scripts.

if [ -n "${JAVA_HOME:-}" ]; then
    java="$JAVA_HOME/bin/java"
else
    java=java
fi

# macOS has a `java` that only prints where to get one: it gives no version, like a missing one.
major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\)[."-].*/\1/p' | head -n 1)

case "$major" in
    17 | 21) exit 0 ;;
    "") found="no working Java was found ($java)" ;;
    1) found="the Java found ($java) is version 8 or older" ;;
    *) found="the Java found ($java) is version $major" ;;
esac

cat >&2 <<EOF
Spark 4 needs Java 17 or 21; $found.
Install one, or point JAVA_HOME at one:
  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless   (or openjdk-21-jre-headless)
  Fedora:          sudo dnf install java-21-openjdk-headless
  macOS:           brew install openjdk@17
                   export JAVA_HOME="\$(brew --prefix openjdk@17)/libexec/openjdk.jdk/Contents/Home"
EOF
exit 1
