package lakemerge.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.PriorityQueue;
import java.util.function.Supplier;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import scala.reflect.ClassTag$;

/**
 * A scan of one version of a table. Spark's own Parquet reader reads base files, winner files and log files without the
 * rows that the version does not have. File slices that the merge kernel has to merge are more partitions of the same
 * scan.
 *
 * <p>Two scans of the same rows are equal, so that Spark may run one for both.
 */
final class NativeScan implements Scan, Batch, SupportsReportStatistics {
  /** What it costs to open a file, in bytes that are read meanwhile. */
  private static final long OPEN_BYTES = 256 << 10;
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
  private final PythonSource kernel;
  private final StructType asked;
  private final Supplier<Scan> otherwise;
  private final boolean inBatches;
  private InputPartition[] partitions;
  private Batch python;
  private Scan streamed;

  /**
   * @param identity equal for the same version of the same table
   * @param table the columns of the table
   * @param columns those that are read
   * @param filters what Spark judges rows by
   * @param conditions those that Python knows, too
   * @param kernel the Python data source of the plan's kernel; {@code null} where it has none
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
      PythonSource kernel,
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
    this.kernel = kernel;
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
    return name + where + " (" + plan.files.size() + " files" + merged + ")";
  }

  @Override
  public Batch toBatch() {
    return this;
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

  @Override
  public Statistics estimateStatistics() {
    long rows = plan.rows() + plan.kernelRows;
    long bytes = plan.bytes();
    // Spark estimates the part of a file's bytes that some columns have in the same way.
    double part = (columns.columns().defaultSize() + 8.0) / (table.defaultSize() + 8.0);
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return OptionalLong.of(Math.max(1, (long) (bytes * Math.min(1, part))));
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
        for (InputPartition partition : Errors.unwrapped(() -> python().planInputPartitions())) {
          found.add(new NativeReaders.Merged(partition));
        }
      }
      if (!plan.merged.isEmpty()) {
        byte[][] streams = plan.merged.toArray(byte[][]::new);
        Broadcast<byte[][]> sent = session.sparkContext().broadcast(streams, ClassTag$.MODULE$.apply(byte[][].class));
        for (int number = 0; number < streams.length; number++) {
          found.add(new NativeReaders.Premerged(sent, number));
        }
      }
      found.addAll(ofFiles());
      partitions = found.toArray(new InputPartition[0]);
    }
    return partitions;
  }

  /** Files are cut into even parts, of which the largest go first to the task that has least. */
  private List<InputPartition> ofFiles() {
    List<StoredFile> files = new ArrayList<>(plan.files);
    files.removeIf(file -> file.wanted() == 0);
    long all = files.stream().mapToLong(file -> file.bytes() + OPEN_BYTES).sum();
    long even = -Math.floorDiv(-all, session.sparkContext().defaultParallelism());
    long most = Math.min(session.sessionState().conf().filesMaxPartitionBytes(), Math.max(OPEN_BYTES, even));
    Broadcast<long[][]> bits = broadcast(files);
    List<NativeReaders.Files.Piece> pieces = new ArrayList<>();
    for (int number = 0; number < files.size(); number++) {
      StoredFile file = files.get(number);
      int count = (int) Math.max(1, Math.round((double) file.bytes() / most));
      for (int part = 0; part < count; part++) {
        pieces.add(new NativeReaders.Files.Piece(number, bits == null ? file.part(part, count)
            : file.withBits(null).part(part, count)));
      }
    }
    pieces.sort(Comparator.comparingLong(piece -> -piece.file().share()));
    int tasks = (int) Math.min(pieces.size(), Math.max(1, -Math.floorDiv(-all, Math.max(1, most))));
    PriorityQueue<NativeReaders.Files> filled =
        new PriorityQueue<>(Comparator.comparingLong((NativeReaders.Files task) -> task.bytes));
    for (int task = 0; task < tasks; task++) {
      filled.add(new NativeReaders.Files(bits));
    }
    for (NativeReaders.Files.Piece piece : pieces) {
      NativeReaders.Files least = filled.poll();
      least.add(piece, piece.file().share() + OPEN_BYTES);
      filled.add(least);
    }
    return new ArrayList<>(filled);
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
        SparkReader.of(session, table, columns.stored(), filters, plan.hadoop, inBatches),
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
        && scan.plan.files.size() == plan.files.size();
  }

  @Override
  public int hashCode() {
    return Objects.hash(identity, readSchema());
  }
}
