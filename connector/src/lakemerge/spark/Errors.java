package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import scala.Option;
import scala.collection.immutable.Map$;

/** Errors of LakeMerge as those that Spark's users know. */
final class Errors {
  /** The last line of a Python traceback, with an error of LakeMerge. */
  private static final Pattern RAISED = Pattern.compile("^[\\w.]+: \\[([\\w-]+)\\] (.*)$", Pattern.MULTILINE);
  private static final Set<String> CONFLICTS = Set.of("commit-conflict", "rows-changed", "domain-changed");

  private Errors() {}

  /**
   * The exception for an error that Python answered. Spark's {@code IF EXISTS} and {@code IF NOT EXISTS} rest on the
   * types of the first four.
   */
  static RuntimeException answered(JsonNode error, Identifier table) {
    String code = error.path("code").asText();
    String[] namespace = table == null ? new String[0] : table.namespace();
    switch (code) {
      case "no-such-table":
        return raise(new NoSuchTableException(table));
      case "table-exists":
        return raise(new TableAlreadyExistsException(table));
      case "no-such-namespace":
        return raise(new NoSuchNamespaceException(namespace));
      case "namespace-exists":
        return raise(new NamespaceAlreadyExistsException(namespace));
      default:
        return refusal(code, error.path("message").asText());
    }
  }

  /**
   * An {@code AnalysisException} with the condition {@code LAKEMERGE_...}. PySpark shows any other exception of ours as
   * {@code Py4JJavaError}, and Connect as {@code UnknownException}.
   */
  static RuntimeException refusal(String code, String message) {
    String kind = CONFLICTS.contains(code) ? "conflict" : code;
    String condition = "LAKEMERGE_" + kind.toUpperCase(Locale.ROOT).replace('-', '_');
    return raise(
        new AnalysisException(
            "[" + condition + "] " + message,
            Option.empty(),
            Option.empty(),
            Option.empty(),
            Option.apply(condition),
            Map$.MODULE$.empty(),
            new QueryContext[0]));
  }

  /**
   * What a call into Python gives. An error of LakeMerge that it raises is raised again under its own condition: Spark
   * has only the text of a traceback of it.
   */
  static <T> T unwrapped(Callable<T> call) {
    try {
      return call.call();
    } catch (Exception error) {
      Matcher found = RAISED.matcher(String.valueOf(error.getMessage()));
      String code = null;
      String message = null;
      while (found.find()) {
        code = found.group(1);
        message = found.group(2);
      }
      throw code == null ? raise(error) : refusal(code, message);
    }
  }

  /** Throws a checked exception as it is: Spark's interfaces do not declare it, and a wrapper hides its condition. */
  @SuppressWarnings("unchecked")
  static <T extends Throwable> RuntimeException raise(Throwable error) throws T {
    throw (T) error;
  }
}
