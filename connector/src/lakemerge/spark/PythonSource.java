package lakemerge.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.DataSource$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * LakeMerge's Python data sources. Classes of Spark that are not its public interface are used here, in
 * {@link StateRows}, in {@link RowBridge}, and for native reads in {@link SparkReader}, {@link KernelParts},
 * {@link KernelBatches} and {@link NativeFrames}.
 */
final class PythonSource {
  private static final String TRANSACTION_APPLICATION = "spark.lakemerge.txnAppId";
  private static final String TRANSACTION_NUMBER = "spark.lakemerge.txnVersion";

  private final TableProvider provider;
  private final CaseInsensitiveStringMap options;

  /** Looks for a source in the session of this thread. */
  PythonSource(String name, Map<String, String> options) {
    this.options = new CaseInsensitiveStringMap(options);
    provider = (TableProvider) DataSource$.MODULE$
        .lookupDataSourceV2(name, SQLConf.get())
        .getOrElse(() -> {
          throw Errors.refusal(
              "not-registered",
              "Spark does not know LakeMerge here: call lakemerge.catalog(spark, ...) first, or install lakemerge"
                  + " for the Python that Spark runs");
        });
  }

  /**
   * Adds to the options of a read which columns and rows are wanted.
   *
   * @param columns their names, as {@link NativeReads#names} writes them
   * @param conditions each in SQL; a row has to fulfil all
   */
  static void select(Map<String, String> options, String columns, List<String> conditions) {
    options.put("lakemerge.columns", columns);
    if (!conditions.isEmpty()) {
      options.put("lakemerge.filter", String.join(" AND ", conditions));
    }
  }

  /** The schema that Python answers. */
  StructType schema() {
    return provider.inferSchema(options);
  }

  /** The source as a table with all columns. */
  Table table() {
    return table(schema());
  }

  /** The source as a table with these columns. */
  Table table(StructType columns) {
    return provider.getTable(columns, new Transform[0], options.asCaseSensitiveMap());
  }

  /** A scan of some columns, of which the source is told. Python's rows may have nulls anywhere. */
  Scan scan(StructType columns) {
    Table table = provider.getTable(plain(columns), new Transform[0], options.asCaseSensitiveMap());
    return ((SupportsRead) table).newScanBuilder(options).build();
  }

  /** The columns with nothing but names and types. Other metadata may mean something to a reader. */
  static StructType plain(StructType columns) {
    return (StructType) plain((DataType) columns);
  }

  private static DataType plain(DataType type) {
    if (type instanceof StructType struct) {
      StructType found = new StructType();
      for (StructField field : struct.fields()) {
        found = found.add(field.name(), plain(field.dataType()), true);
      }
      return found;
    }
    if (type instanceof ArrayType array) {
      return new ArrayType(plain(array.elementType()), true);
    }
    if (type instanceof MapType map) {
      return new MapType(plain(map.keyType()), plain(map.valueType()), true);
    }
    return type;
  }

  CaseInsensitiveStringMap options() {
    return options;
  }

  /** The application transaction that the session gives its writes: application and number, as in Delta. */
  static Optional<ArrayNode> transaction() {
    String application = SQLConf.get().getConfString(TRANSACTION_APPLICATION, null);
    String number = SQLConf.get().getConfString(TRANSACTION_NUMBER, null);
    if (application == null && number == null) {
      return Optional.empty();
    }
    if (application == null || number == null || !number.matches("\\d{1,18}")) {
      throw Errors.refusal(
          "input", "set both " + TRANSACTION_APPLICATION + " and " + TRANSACTION_NUMBER + ", which is a number");
    }
    return Optional.of(Channel.JSON.createArrayNode().add(application).add(Long.parseLong(number)));
  }

  /** Whether the statement that runs on this thread is a MERGE that only inserts. Spark 4.2 and later say so. */
  static boolean isInsertOnlyMerge() {
    String execution = SparkContext.getOrCreate().getLocalProperty("spark.sql.execution.id");
    if (execution == null) {
      return false;
    }
    QueryExecution running = SQLExecution.getQueryExecution(Long.parseLong(execution));
    return running != null && running.logical().getClass().getSimpleName().equals("InsertOnlyMerge");
  }
}
