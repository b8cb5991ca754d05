package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.SparkSession$;

/** How a version is read, as Python planned it: files with the rows that it has of them, and what the kernel merges. */
final class ReadPlan {
  /** Why Spark's own reader cannot be used; {@code null} where it can. */
  final String refusal;
  final List<StoredFile> files = new ArrayList<>();
  /** Options of Hadoop's file systems, with which the files are reached. Some may be secret. */
  final Map<String, String> hadoop;
  /** Rows that were merged before the read, as Arrow streams, and how many they are. */
  final List<byte[]> merged = new ArrayList<>();
  final long mergedRows;
  /** Options of the Python data source that merges the other file slices; {@code null} where there are none. */
  final Map<String, String> kernel;
  /** What it merges; {@code null} where there are no such options. */
  final KernelParts kernelParts;
  /** About how many rows the kernel gives, at most. */
  final long kernelRows;
  /** What files call columns that have other names there. */
  final Map<String, String> fileNames;
  final FileSlices slices;
  /** The file slices that are read, by their numbers; {@code null}: all. */
  final BitSet chosen;
  /** Of each file and each stream: the number of the file slice that has rows there; -1 if that is not known. */
  private final List<Integer> ofFiles = new ArrayList<>();
  private final List<Integer> ofStreams = new ArrayList<>();
  /** The size of each file that is read, by its place. {@link #fileBytes()} fills it in. */
  private Map<String, Long> fileBytes;

  /**
   * What Python is asked for a plan.
   *
   * @param conditions each in SQL; a row has to fulfil all
   */
  static ObjectNode request(String path, String tableId, long version, List<String> conditions) {
    ObjectNode request = Channel.request("plan").put("path", path).put("tableId", tableId).put("version", version);
    request.put("tasks", SparkSession$.MODULE$.active().sparkContext().defaultParallelism());
    conditions.forEach(request.putArray("conditions")::add);
    return request;
  }

  ReadPlan(JsonNode plan) {
    this(plan, new byte[0], LakeMergeCatalog.texts(plan.path("hadoop")));
  }

  /**
   * @param streams the merged rows, one stream after the other
   * @param hadoop options of Hadoop's file systems
   */
  ReadPlan(JsonNode plan, byte[] streams, Map<String, String> hadoop) {
    int begin = 0;
    for (JsonNode size : plan.path("streams")) {
      merged.add(Arrays.copyOfRange(streams, begin, begin + size.asInt()));
      begin += size.asInt();
    }
    for (int stream = 0; stream < merged.size(); stream++) {
      ofStreams.add(plan.path("streamSlices").path(stream).asInt(-1));
    }
    mergedRows = plan.path("streamRows").asLong();
    refusal = plan.path("refused").asText(null);
    this.hadoop = new HashMap<>(hadoop);
    JsonNode tasks = plan.path("kernel");
    kernel = tasks.isObject() ? LakeMergeCatalog.texts(tasks.path("options")) : null;
    kernelParts = tasks.isObject() ? new KernelParts(tasks) : null;
    kernelRows = tasks.path("rows").asLong();
    fileNames = LakeMergeCatalog.texts(plan.path("fileNames"));
    slices = new FileSlices(plan.path("slices"));
    chosen = null;
    LongBuffer bits = ByteBuffer.wrap(Channel.unpacked(plan.path("bits").asText("0 ")))
        .order(ByteOrder.LITTLE_ENDIAN)
        .asLongBuffer();
    JsonNode told = plan.path("files");
    int taken = 0;
    for (int file = 0; file < told.path("urls").size(); file++) {
      long[] own = null;
      int words = told.path("words").get(file).asInt();
      if (words >= 0) {
        own = new long[words];
        bits.get(taken, own);
        taken += words;
      }
      files.add(new StoredFile(
          told.path("urls").get(file).asText(),
          told.path("bytes").get(file).asLong(),
          told.path("rows").get(file).asLong(),
          told.path("wanted").get(file).asLong(),
          own,
          told.path("skipped").get(file).asInt(),
          told.path("keeps").get(file).asBoolean()));
      ofFiles.add(told.path("slices").path(file).asInt(-1));
    }
  }

  /**
   * A part of a plan.
   *
   * @param some how many of the first files
   * @param of the file slices that are read
   * @param isOfFewKeys whether few keys are read of each
   */
  private ReadPlan(ReadPlan whole, int some, boolean merges, BitSet of, boolean isOfFewKeys) {
    refusal = whole.refusal;
    hadoop = whole.hadoop;
    fileNames = whole.fileNames;
    slices = whole.slices;
    chosen = of;
    for (int file = 0; file < some; file++) {
      if (isIn(of, whole.ofFiles.get(file))) {
        files.add(whole.files.get(file));
        ofFiles.add(whole.ofFiles.get(file));
      }
    }
    for (int stream = 0; stream < whole.merged.size(); stream++) {
      if (isIn(of, whole.ofStreams.get(stream))) {
        merged.add(whole.merged.get(stream));
        ofStreams.add(whole.ofStreams.get(stream));
      }
    }
    mergedRows = share(whole.mergedRows, merged.size(), whole.merged.size());
    KernelParts left = merges && whole.kernel != null ? whole.kernelParts.of(slice -> isIn(of, slice)) : null;
    boolean hasKernel = left != null && left.count() > 0;
    kernel = hasKernel ? whole.kernel : null;
    kernelRows = hasKernel ? share(whole.kernelRows, left.count(), whole.kernelParts.count()) : 0;
    kernelParts = hasKernel ? (isOfFewKeys ? left.whole() : left) : null;
  }

  private static boolean isIn(BitSet chosen, int slice) {
    return chosen == null || slice < 0 || chosen.get(slice);
  }

  private static long share(long all, int some, int of) {
    return some == of ? all : all * some / of;
  }

  /** The rows of the version, without those of the kernel. About so many, if file slices were left out. */
  long rows() {
    return files.stream().mapToLong(StoredFile::wanted).sum() + mergedRows;
  }

  /** How many files are read. The same log file has records of several file slices. */
  int fileCount() {
    return fileBytes().size();
  }

  private synchronized Map<String, Long> fileBytes() {
    if (fileBytes == null) {
      fileBytes = new HashMap<>();
      files.forEach(file -> fileBytes.put(file.url(), file.bytes()));
    }
    return fileBytes;
  }

  /** About how many bytes are read. */
  long bytes() {
    long stored = fileBytes().values().stream().mapToLong(Long::longValue).sum();
    long computed = merged.stream().mapToLong(stream -> stream.length).sum();
    return stored + computed + (kernelParts == null ? 0 : kernelParts.bytes());
  }

  /** The file slice that a file has rows of; -1 if that is not known. */
  int sliceOf(int file) {
    return ofFiles.get(file);
  }

  /** The file slice of merged rows; -1 if that is not known. */
  int sliceOfStream(int stream) {
    return ofStreams.get(stream);
  }

  /** As much of the plan as has some number of rows, if it has so many. */
  ReadPlan limited(long rows) {
    int some = 0;
    long found = mergedRows;
    while (some < files.size() && found < rows) {
      found += files.get(some).wanted();
      some++;
    }
    return new ReadPlan(this, some, found < rows, chosen, false);
  }

  /** The plan without file slices that cannot hold rows that meet the conditions. */
  ReadPlan only(List<Expression> conditions, Map<String, Set<Object>> listed) {
    return slices.matching(conditions, listed).map(this::of).orElse(this);
  }

  private ReadPlan of(FileSlices.Choice choice) {
    BitSet some = choice.slices();
    if (chosen != null) {
      some.and(chosen);
    }
    return new ReadPlan(this, files.size(), true, some, choice.isOfFewKeys());
  }
}
