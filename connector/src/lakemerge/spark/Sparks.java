package lakemerge.spark;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.classic.SparkSession;

/** What Sparks have and lack. */
public final class Sparks {
  private static final String TESTED = "Spark 4.0.2 to 4.3";
  /** What this jar uses besides Spark's public interface for connectors: a class, or a method of one. */
  private static final List<String> INTERNALS = List.of(
      "org.apache.spark.sql.execution.datasources.DataSource$#lookupDataSourceV2",
      "org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2#setShortName",
      "org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition#pickedPartition",
      "org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage#pickledMessage",
      "org.apache.spark.sql.execution.SQLExecution#getQueryExecution",
      "org.apache.spark.sql.execution.QueryExecution#logical",
      "org.apache.spark.sql.internal.SQLConf#get",
      "org.apache.spark.TaskContext#killTaskIfInterrupted");

  private Sparks() {}

  /** Refuses a Spark that lacks what this jar uses. An error of linking would come in the middle of a statement. */
  static void check() {
    problem(version(), INTERNALS).ifPresent(text -> {
      throw Errors.refusal("unsupported-spark", text);
    });
  }

  /** Refuses to write rows on a Spark that can only read. */
  static void checkWrites(String statement) {
    String version = version();
    if (!canWrite(version)) {
      throw Errors.refusal(
          "unsupported-spark",
          statement + " needs Spark 4.1 or newer, and this is " + version + ". On 4.0 catalogs, SELECT and CALL work");
    }
  }

  /** Whether rows can be written: Spark 4.0 lacks what Python needs for it. */
  public static boolean canWrite(String version) {
    return !version.startsWith("4.0.");
  }

  /**
   * Whether Spark puts partitions of the same bucket together only where a query needs it (from 4.2 on). Before, it
   * does so in each query, which then has no more tasks than there are buckets.
   */
  static boolean groupsPartitionsLate() {
    return isThere("org.apache.spark.sql.execution.datasources.v2.GroupPartitionsExec");
  }

  /** Whether Spark hands constraints of tables to catalogs (from 4.1 on). */
  static boolean hasConstraints() {
    return isThere("org.apache.spark.sql.connector.catalog.constraints.Constraint");
  }

  /** What is wrong with a Spark; nothing if it has all that is needed. */
  public static Optional<String> problem(String version, List<String> needed) {
    return needed.stream().filter(each -> !isThere(each)).findFirst().map(each ->
        "this Spark, " + version + ", lacks " + each.replace("$#", ".").replace('#', '.')
            + ", which LakeMerge's catalog needs: it was tested with " + TESTED
            + ". LakeTable and format('lakemerge') do without it");
  }

  /** Sends this jar to executors, where a session has only shown it to its driver. */
  static void sendJar(SparkSession session) {
    String path = Sparks.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    String name = path.substring(path.lastIndexOf('/') + 1);
    if (!session.sparkContext().listJars().exists(jar -> jar.endsWith("/" + name))) {
      session.sessionState().resourceLoader().addJar(path);
    }
  }

  private static boolean isThere(String needed) {
    String[] parts = needed.split("#");
    try {
      Class<?> found = Class.forName(parts[0], false, SparkContext.class.getClassLoader());
      return parts.length == 1
          || Arrays.stream(found.getMethods()).map(Method::getName).anyMatch(parts[1]::equals);
    } catch (ClassNotFoundException | LinkageError error) {
      return false;
    }
  }

  private static String version() {
    return SparkContext.getOrCreate().version();
  }
}
