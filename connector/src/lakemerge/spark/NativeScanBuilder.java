package lakemerge.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.internal.connector.SupportsPushDownCatalystFilters;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Makes the scan of a query: with the columns that it needs, without files and row groups that its filters rule out,
 * with as many files as its limit needs, or with nothing but the number of rows. Spark judges all rows again.
 */
final class NativeScanBuilder
    implements ScanBuilder,
        SupportsPushDownRequiredColumns,
        SupportsPushDownCatalystFilters,
        SupportsPushDownAggregates,
        SupportsPushDownLimit {
  /**
   * Spark 4.2 first has a command look for the keys that it will change, in a scan of its own, if the keys may rule
   * out files. With 97 MB of files that takes longer than to read them all. The limit is an estimate.
   */
  private static final long LOOKED_THROUGH_BYTES = 512 << 20;

  private final Source source;
  private final SparkSession session;
  private StructType columns;
  /** What all rows that are needed meet, and what data sources know of it. */
  private final List<Expression> wanted = new ArrayList<>();
  private Filter[] filters = {};
  private final List<String> conditions = new ArrayList<>();
  private long limit = -1;
  private int counts;
  private ReadPlan plan;
  private boolean isUsable;

  /** What is read. */
  interface Source {
    String name();

    StructType schema();

    /** The table's column that a query names. */
    default String stored(String column) {
      return column;
    }

    /** @param conditions what all rows that are needed meet */
    ReadPlan plan(List<String> conditions);

    /**
     * The Python data source of the plan's kernel.
     *
     * @param columns as {@link NativeReads#names} gives them
     */
    PythonSource kernel(ReadPlan plan, String columns, List<String> conditions);

    /** Equal for the same version of the same table. */
    Object identity();

    /** Whether it reads the rows that an UPDATE, DELETE or MERGE may change. */
    default boolean isOfCommand() {
      return false;
    }

    /** Whether structs come with all their fields, even if a query needs only some. */
    default boolean givesWholeColumns() {
      return false;
    }

    /** The scan if the plan is refused, or if these columns cannot be read so; {@code null} where there is no other. */
    Scan otherwise(StructType columns, Filter[] filters);
  }

  NativeScanBuilder(Source source, SparkSession session) {
    this.source = source;
    this.session = session;
    columns = source.schema();
  }

  @Override
  public void pruneColumns(StructType required) {
    columns = required;
    if (source.givesWholeColumns()) {
      columns = new StructType();
      for (String name : required.fieldNames()) {
        columns = columns.add(source.schema().apply(name));
      }
    }
  }

  @Override
  public Seq<Expression> pushFilters(Seq<Expression> given) {
    wanted.addAll(CollectionConverters.asJava(given));
    filters = translated(wanted);
    for (Filter filter : filters) {
      Predicate predicate = filter.toV2();
      if (Filters.isOf(source.schema(), predicate)) {
        Filters.text(predicate).ifPresent(conditions::add);
      }
    }
    return given;
  }

  /** What data sources know of conditions. */
  private static Filter[] translated(List<Expression> conditions) {
    return conditions.stream()
        .filter(condition -> !condition.exists(Filters::isOld))
        .map(condition -> DataSourceStrategy$.MODULE$.translateFilter(condition, true))
        .filter(Option::isDefined)
        .map(Option::get)
        .toArray(Filter[]::new);
  }

  @Override
  public Predicate[] pushedFilters() {
    return Arrays.stream(filters).map(Filter::toV2).toArray(Predicate[]::new);
  }

  @Override
  public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return countsRows(aggregation);
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    counts = countsRows(aggregation) ? aggregation.aggregateExpressions().length : 0;
    return counts > 0;
  }

  /** Whether all that is asked for is the number of rows, which the plan knows. */
  private boolean countsRows(Aggregation aggregation) {
    return wanted.isEmpty()
        && aggregation.groupByExpressions().length == 0
        && aggregation.aggregateExpressions().length > 0
        && Arrays.stream(aggregation.aggregateExpressions()).allMatch(CountStar.class::isInstance)
        && planned().kernel == null
        && isUsable;
  }

  private ReadPlan planned() {
    if (plan == null) {
      plan = source.plan(conditions);
      isUsable = plan.refusal == null && NativeReads.unreachable(session, plan).isEmpty();
    }
    return plan;
  }

  @Override
  public Scan build() {
    NamedColumns named = NamedColumns.of(columns, source);
    if (named == null || planned().refusal != null || !isUsable) {
      return source.otherwise(columns, filters);
    }
    if (counts > 0) {
      return new Count(source.name(), counts, planned().rows());
    }
    ReadPlan some = planned().only(wanted, Map.of());
    if (limit >= 0) {
      some = some.limited(limit);
    }
    // Rows without columns still have to be counted, by one column.
    StructType asked = columns.isEmpty() ? new StructType().add(source.schema().apply(0)) : columns;
    return new NativeScan(
        source.name(),
        List.of(source.identity(), limit),
        session,
        source.schema(),
        named,
        inFiles(some.fileNames),
        conditions,
        some,
        !source.isOfCommand() || some.bytes() > LOOKED_THROUGH_BYTES,
        part -> part.kernel == null
            ? null
            : source.kernel(part, NativeReads.names(asked, source::stored), conditions),
        asked,
        () -> source.otherwise(columns, filters));
  }

  /** The filters under the names that columns have in files. */
  private Filter[] inFiles(Map<String, String> names) {
    if (names.isEmpty()) {
      return filters;
    }
    return translated(wanted.stream()
        .map(condition -> FileSlices.replaced(
            condition, column -> column.withName(names.getOrDefault(column.name(), column.name()))))
        .toList());
  }

  /** The number of rows, once for each time that it is asked for. */
  private static final class Count implements LocalScan {
    private final String table;
    private final int times;
    private final long number;

    Count(String table, int times, long number) {
      this.table = table;
      this.times = times;
      this.number = number;
    }

    @Override
    public StructType readSchema() {
      StructType found = new StructType();
      for (int at = 0; at < times; at++) {
        found = found.add("count" + at, DataTypes.LongType, false);
      }
      return found;
    }

    @Override
    public String description() {
      return table + ": the number of rows, without a scan";
    }

    @Override
    public InternalRow[] rows() {
      Object[] values = new Object[times];
      Arrays.fill(values, number);
      return new InternalRow[] {new GenericInternalRow(values)};
    }
  }
}
