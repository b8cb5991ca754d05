package lakemerge.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.UnaryOperator;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.jdk.javaapi.CollectionConverters;

/** Whether tables are read by LakeMerge's own scan. */
final class NativeReads {
  /** The setting of a session that switches the scan off: {@code off}. */
  static final String SWITCH = "spark.lakemerge.nativeReads";
  private static final String ENVIRONMENT = "LAKEMERGE_CONNECTOR";

  private static final Logger LOG = LoggerFactory.getLogger(NativeReads.class);
  private static final ConcurrentHashMap<Store, Optional<String>> TRIED = new ConcurrentHashMap<>();

  private NativeReads() {}

  /** Why a table with these columns is not read so; nothing if it is. */
  static Optional<String> refusal(SQLConf session, StructType columns) {
    if ("off".equalsIgnoreCase(System.getenv(ENVIRONMENT))) {
      return Optional.of(ENVIRONMENT + "=off in the environment");
    }
    if ("off".equalsIgnoreCase(session.getConfString(SWITCH, "on"))) {
      return Optional.of(SWITCH + "=off in the session");
    }
    if (KnownReaders.refusal().isPresent()) {
      return KnownReaders.refusal();
    }
    for (StructField field : columns.fields()) {
      if (!SparkReader.takes(field.dataType())) {
        return Optional.of("column " + field.name() + " has the type " + field.dataType().sql());
      }
    }
    return Optional.empty();
  }

  /** Where files are, and with which options they are reached, of which some may be secret. */
  private record Store(String place, Map<String, String> options) {
    @Override
    public String toString() {
      return place;
    }
  }

  /** Why Hadoop does not reach the files of a plan; nothing if it does. A store is tried once with the same options. */
  static Optional<String> unreachable(SparkSession session, ReadPlan plan) {
    if (plan.files.isEmpty() || plan.files.get(0).url().startsWith("file:")) {
      return Optional.empty();
    }
    Path path = new Path(plan.files.get(0).url());
    String place = path.toUri().getScheme() + "://" + path.toUri().getAuthority();
    return TRIED.computeIfAbsent(new Store(place, plan.hadoop), store -> {
      try {
        scala.collection.immutable.Map<String, String> options =
            scala.collection.immutable.Map.from(CollectionConverters.asScala(store.options));
        path.getFileSystem(session.sessionState().newHadoopConfWithOptions(options)).getFileStatus(path);
        return Optional.empty();
      } catch (IOException | RuntimeException | LinkageError error) {
        LOG.info("Tables of {} are read through Python: {}", store, error.toString());
        return Optional.of("Hadoop cannot read " + store);
      }
    });
  }

  /** Columns as the Python data source is told of them: each as the query names it, and as the table does. */
  static String names(StructType columns, UnaryOperator<String> stored) {
    ArrayNode names = Channel.JSON.createArrayNode();
    for (String name : columns.fieldNames()) {
      names.addArray().add(name).add(stored.apply(name));
    }
    return names.toString();
  }
}
