package lakemerge.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.PriorityQueue;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportOrdering;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.reflect.ClassTag$;

/**
 * A scan of one version of a table. Spark's own Parquet reader reads base files, winner files and log files without the
 * rows that the version does not have. File slices that the merge kernel has to merge are more partitions of the same
 * scan.
 *
 * <p>Two scans of the same rows are equal, so that Spark may run one for both.
 */
final class NativeScan
    implements Scan,
        Batch,
        SupportsReportStatistics,
        SupportsReportPartitioning,
        SupportsReportOrdering,
        SupportsRuntimeV2Filtering {
  private static final Logger LOG = LoggerFactory.getLogger(NativeScan.class);
  /** What it costs to open a file, in bytes that are read meanwhile. */
  private static final long OPEN_BYTES = 256 << 10;
  /**
   * A table that Spark sends to each executor is collected first, and its keys with it. Reading a table so many times
   * as large takes about as long: a judgement from one query of TPC-H on two cores.
   */
  private static final int TIMES_THE_KEYS = 8;
  /** Above so many bytes of bits, they are sent to each executor once, and not with each task. */
  private static final long BROADCAST_BYTES = 1 << 20;

  private final String name;
  private final Object identity;
  private final SparkSession session;
  private final StructType table;
  private final NamedColumns columns;
  private final Filter[] filters;
  private final List<String> conditions;
  private final ReadPlan plan;
  private final boolean takesKeys;
  private final Function<ReadPlan, PythonSource> kernelOf;
  private final PythonSource kernel;
  private final StructType asked;
  private final Supplier<Scan> otherwise;
  private final boolean inBatches;
  /** What a query has found out before the batch that it asks for next, on the same thread. */
  private final ThreadLocal<Map<String, Set<Object>>> listed = new ThreadLocal<>();
  private Shares shares;
  private InputPartition[] partitions;
  private Batch python;
  private Scan streamed;

  /**
   * @param identity equal for the same version of the same table
   * @param table the columns of the table
   * @param columns those that are read
   * @param filters what Spark judges rows by
   * @param conditions those that Python knows, too
   * @param takesKeys whether keys that Spark finds out while it runs may rule out files
   * @param kernelOf gives the Python data source of a plan's kernel; {@code null} where it has none
   * @param asked the columns that the kernel gives
   * @param otherwise gives a scan that is a stream, too
   */
  NativeScan(
      String name,
      Object identity,
      SparkSession session,
      StructType table,
      NamedColumns columns,
      Filter[] filters,
      List<String> conditions,
      ReadPlan plan,
      boolean takesKeys,
      Function<ReadPlan, PythonSource> kernelOf,
      StructType asked,
      Supplier<Scan> otherwise) {
    this.name = name;
    this.identity = identity;
    this.session = session;
    this.table = table;
    this.columns = columns;
    this.filters = filters;
    this.conditions = conditions;
    this.plan = plan;
    this.takesKeys = takesKeys;
    this.kernelOf = kernelOf;
    kernel = kernelOf.apply(plan);
    this.asked = asked;
    this.otherwise = otherwise;
    inBatches = SparkReader.readsBatches(session, columns.stored());
  }

  @Override
  public StructType readSchema() {
    return columns.columns();
  }

  @Override
  public String description() {
    String merged = plan.kernel == null ? "" : " and merged file slices";
    merged = plan.merged.isEmpty() ? merged : " and merged rows" + merged;
    String where = conditions.isEmpty() ? "" : ", where " + String.join(" AND ", conditions);
    return name + where + " (" + plan.fileCount() + " files" + merged + ")";
  }

  @Override
  public NamedReference[] filterAttributes() {
    // What is small is read before the driver has collected the keys.
    long most = session.sessionState().conf().autoBroadcastJoinThreshold();
    long scanned = bytes() + OPEN_BYTES * plan.fileCount();
    if (!takesKeys || (kernel == null && most >= 0 && scanned / TIMES_THE_KEYS <= most)) {
      return new NamedReference[0];
    }
    List<String> read = List.of(readSchema().fieldNames());
    return plan.slices.choosing().stream()
        .filter(read::contains)
        .map(name -> Expressions.column(quoted(name)))
        .toArray(NamedReference[]::new);
  }

  /**
   * Spark asks for a batch right afterwards. Only that one lacks file slices: a plan may have the same scan in several
   * places, with other filters.
   */
  @Override
  public void filter(Predicate[] filters) {
    listed.set(FileSlices.listed(filters));
  }

  @Override
  public Batch toBatch() {
    Map<String, Set<Object>> values = listed.get();
    listed.remove();
    if (values == null || values.isEmpty()) {
      return this;
    }
    ReadPlan some = plan.only(List.of(), values);
    if (some == plan) {
      return this;
    }
    LOG.info("{}: {} of {} files are read for the keys of a join", name, some.files.size(), plan.files.size());
    NativeScan found = new NativeScan(
        name, identity, session, table, columns, filters, conditions, some, takesKeys, kernelOf, asked, otherwise);
    found.shares = shares();  // Spark takes no more partitions of a bucket than there were
    return found;
  }

  /** Spark tells a scan that it is a stream only when it has been built. */
  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    streamed = otherwise.get();
    return streamed.toMicroBatchStream(checkpoint);
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    if (streamed != null) {
      return streamed.columnarSupportMode();
    }
    return inBatches ? ColumnarSupportMode.SUPPORTED : ColumnarSupportMode.UNSUPPORTED;
  }

  /** About how many bytes are read. Spark estimates the part of a file's bytes that some columns have in the same way. */
  private long bytes() {
    double part = (columns.columns().defaultSize() + 8.0) / (table.defaultSize() + 8.0);
    return Math.max(1, (long) (plan.bytes() * Math.min(1, part)));
  }

  @Override
  public Statistics estimateStatistics() {
    long rows = plan.rows() + plan.kernelRows;
    long bytes = bytes();
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return OptionalLong.of(bytes);
      }

      @Override
      public OptionalLong numRows() {
        return OptionalLong.of(rows);
      }
    };
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    if (streamed != null) {
      return streamed.supportedCustomMetrics();
    }
    return kernel == null ? new CustomMetric[0] : kernel.scan(asked).supportedCustomMetrics();
  }

  private synchronized Batch python() {
    if (python == null) {
      python = kernel.scan(asked).toBatch();
    }
    return python;
  }

  @Override
  public synchronized InputPartition[] planInputPartitions() {
    if (partitions == null) {
      List<InputPartition> found = new ArrayList<>();
      if (kernel != null) {  // these first, because they take longest
        plan.kernelParts.tasks().forEach(task -> found.add(new NativeReaders.Merged(task)));
      }
      if (!plan.merged.isEmpty()) {
        byte[][] streams = plan.merged.toArray(byte[][]::new);
        Broadcast<byte[][]> sent = session.sparkContext().broadcast(streams, ClassTag$.MODULE$.apply(byte[][].class));
        for (int number = 0; number < streams.length; number++) {
          found.add(new NativeReaders.Premerged(sent, number, bucket(plan.sliceOfStream(number))));
        }
      }
      found.addAll(ofFiles());
      partitions = found.toArray(new InputPartition[0]);
    }
    return partitions;
  }

  // Tasks

  /**
   * How files are divided among tasks.
   *
   * @param most about how many bytes a task reads
   * @param byBucket whether each task reads of one bucket
   */
  private record Shares(long most, boolean byBucket) {
    int tasks(long bytes) {
      // A bucket that is a little larger than others needs no second task.
      long parts = byBucket ? Math.round((double) bytes / most) : -Math.floorDiv(-bytes, Math.max(1, most));
      return (int) Math.max(1, parts);
    }
  }

  private synchronized Shares shares() {
    if (shares == null) {
      List<StoredFile> files = wantedOnce();
      long all = files.stream().mapToLong(NativeScan::cost).sum();
      int cores = session.sparkContext().defaultParallelism();
      long even = -Math.floorDiv(-all, cores);
      long most = Math.min(session.sessionState().conf().filesMaxPartitionBytes(), Math.max(OPEN_BYTES, even));
      Shares bound = new Shares(most, true);
      shares = new Shares(most, false);
      if (mayGoByBucket()) {
        Map<Integer, List<Integer>> buckets = byBucket();
        int tasks = buckets.values().stream()
            .mapToInt(numbers -> bound.tasks(numbers.stream().mapToLong(at -> cost(plan.files.get(at))).sum()))
            .sum();
        int opened = buckets.values().stream().mapToInt(List::size).sum();
        boolean isSmall = bytes() <= session.sessionState().conf().autoBroadcastJoinThreshold();
        // Many more tasks, or log files that are opened for each bucket of a small table, cost more than an exchange.
        boolean pays = tasks <= 2 * Math.max(cores, shares.tasks(all)) && !(isSmall && opened > files.size());
        shares = pays ? bound : shares;
      }
    }
    return shares;
  }

  /** The files with rows, each once. */
  private List<StoredFile> wantedOnce() {
    List<StoredFile> files = StoredFile.once(plan.files);
    files.removeIf(file -> file.wanted() == 0);
    return files;
  }

  private static long cost(StoredFile file) {
    return file.wanted() == 0 ? 0 : file.bytes() + OPEN_BYTES;
  }

  private boolean mayGoByBucket() {
    return kernel == null
        && Sparks.groupsPartitionsLate()
        && session.sessionState().conf().v2BucketingEnabled()
        && plan.slices.buckets() > 1
        && plan.slices.bucketColumn().filter(List.of(readSchema().fieldNames())::contains).isPresent()
        && IntStream.range(0, plan.files.size()).allMatch(file -> plan.sliceOf(file) >= 0)
        && IntStream.range(0, plan.merged.size()).allMatch(stream -> plan.sliceOfStream(stream) >= 0);
  }

  private int bucket(int slice) {
    return slice < 0 ? -1 : plan.slices.bucketOf(slice);
  }

  /** The numbers of the files with rows, by bucket. */
  private Map<Integer, List<Integer>> byBucket() {
    Map<Integer, List<Integer>> found = new TreeMap<>();
    for (int file = 0; file < plan.files.size(); file++) {
      if (plan.files.get(file).wanted() > 0) {
        found.computeIfAbsent(bucket(plan.sliceOf(file)), bucket -> new ArrayList<>()).add(file);
      }
    }
    return found;
  }

  private List<InputPartition> ofFiles() {
    List<InputPartition> found = new ArrayList<>();
    if (shares().byBucket) {
      Broadcast<long[][]> bits = broadcast(plan.files);
      byBucket().forEach((bucket, files) -> found.addAll(packed(plan.files, files, bits, bucket)));
      return found;
    }
    List<StoredFile> files = wantedOnce();
    return packed(files, IntStream.range(0, files.size()).boxed().toList(), broadcast(files), -1);
  }

  /** Files are cut into even parts, of which the largest go first to the task that has least. */
  private List<InputPartition> packed(
      List<StoredFile> all, List<Integer> numbers, Broadcast<long[][]> bits, int bucket) {
    long most = shares().most;
    List<NativeReaders.Files.Piece> pieces = new ArrayList<>();
    for (int number : numbers) {
      StoredFile file = all.get(number);
      int count = (int) Math.max(1, Math.round((double) file.bytes() / most));
      for (int part = 0; part < count; part++) {
        pieces.add(new NativeReaders.Files.Piece(number, bits == null ? file.part(part, count)
            : file.withBits(null).part(part, count)));
      }
    }
    pieces.sort(Comparator.comparingLong(piece -> -piece.file().share()));
    long bytes = numbers.stream().mapToLong(number -> cost(all.get(number))).sum();
    int tasks = Math.min(pieces.size(), shares().tasks(bytes));
    PriorityQueue<NativeReaders.Files> filled =
        new PriorityQueue<>(Comparator.comparingLong((NativeReaders.Files task) -> task.bytes));
    for (int task = 0; task < tasks; task++) {
      filled.add(new NativeReaders.Files(bits, bucket));
    }
    for (NativeReaders.Files.Piece piece : pieces) {
      NativeReaders.Files least = filled.poll();
      least.add(piece, piece.file().share() + OPEN_BYTES);
      filled.add(least);
    }
    return new ArrayList<>(filled);
  }

  /** Spark need not move rows to join or group them by the key, if they come bucket by bucket. */
  @Override
  public Partitioning outputPartitioning() {
    if (streamed != null || !shares().byBucket) {
      return new UnknownPartitioning(0);
    }
    String key = quoted(plan.slices.bucketColumn().orElseThrow());
    Expression bucket = Expressions.bucket(plan.slices.buckets(), key);
    return new KeyGroupedPartitioning(new Expression[] {bucket}, planInputPartitions().length);
  }

  /** Base files are sorted by key. A bucket's rows are, if it has one file, which one task reads. */
  @Override
  public SortOrder[] outputOrdering() {
    boolean isSorted = streamed == null
        && shares().byBucket
        && plan.merged.isEmpty()
        && byBucket().values().stream().allMatch(files -> files.size() == 1
            && !plan.files.get(files.get(0)).keeps()
            && Math.round((double) plan.files.get(files.get(0)).bytes() / shares().most) <= 1);
    if (!isSorted) {
      return new SortOrder[0];
    }
    String key = quoted(plan.slices.bucketColumn().orElseThrow());
    return new SortOrder[] {Expressions.sort(Expressions.column(key), SortDirection.ASCENDING)};
  }

  private static String quoted(String column) {
    return "`" + column.replace("`", "``") + "`";
  }

  private Broadcast<long[][]> broadcast(List<StoredFile> files) {
    if (files.stream().mapToLong(StoredFile::bitBytes).sum() <= BROADCAST_BYTES) {
      return null;
    }
    long[][] bits = files.stream().map(StoredFile::bits).toArray(long[][]::new);
    return session.sparkContext().broadcast(bits, ClassTag$.MODULE$.apply(long[][].class));
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new NativeReaders(
        SparkReader.of(session, table, columns.stored(), filters, plan, inBatches),
        kernel == null ? null : Errors.unwrapped(() -> python().createReaderFactory()),
        asked,
        columns,
        inBatches);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof NativeScan scan
        && scan.identity.equals(identity)
        && scan.readSchema().equals(readSchema())
        && Arrays.equals(scan.filters, filters)
        && Objects.equals(scan.plan.chosen, plan.chosen);
  }

  @Override
  public int hashCode() {
    return Objects.hash(identity, readSchema());
  }
}
