package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.SparkSession$;

/** How a version is read, as Python planned it: files with the rows that it has of them, and what the kernel merges. */
final class ReadPlan {
  private static final String KERNEL_SLICES = "lakemerge.slices";

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
  /** About how many rows the kernel gives, at most, and how many bytes it reads. */
  final long kernelRows;
  final long kernelBytes;
  /** What files call columns that have other names there. */
  final Map<String, String> fileNames;
  final FileSlices slices;
  /** The file slices that are read, by their numbers; {@code null}: all. */
  final BitSet chosen;
  /** Of each file, each stream and the kernel: the numbers of the file slices that have rows there. */
  private final List<int[]> ofFiles = new ArrayList<>();
  private final List<int[]> ofStreams = new ArrayList<>();
  private final int[] ofKernel;

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
    plan.path("streamSlices").forEach(slices -> ofStreams.add(numbers(slices)));
    mergedRows = plan.path("streamRows").asLong();
    refusal = plan.path("refused").asText(null);
    this.hadoop = new HashMap<>(hadoop);
    JsonNode tasks = plan.path("kernel");
    kernel = tasks.isObject() ? LakeMergeCatalog.texts(tasks.path("options")) : null;
    kernelRows = tasks.path("rows").asLong();
    kernelBytes = tasks.path("bytes").asLong();
    ofKernel = numbers(tasks.path("slices"));
    fileNames = LakeMergeCatalog.texts(plan.path("fileNames"));
    slices = new FileSlices(plan.path("slices"));
    chosen = null;
    LongBuffer bits = ByteBuffer.wrap(Base64.getDecoder().decode(plan.path("bits").asText()))
        .order(ByteOrder.LITTLE_ENDIAN)
        .asLongBuffer();
    int taken = 0;
    for (JsonNode file : plan.path("files")) {
      long[] own = null;
      int words = file.path("words").asInt(-1);
      if (words >= 0) {
        own = new long[words];
        bits.get(taken, own);
        taken += words;
      }
      files.add(new StoredFile(
          file.path("url").asText(),
          file.path("bytes").asLong(),
          file.path("rows").asLong(),
          file.path("wanted").asLong(),
          own,
          file.path("skipped").asInt(),
          file.path("keeps").asBoolean()));
      ofFiles.add(numbers(file.path("slices")));
    }
  }

  private static int[] numbers(JsonNode told) {
    int[] found = new int[told.size()];
    for (int at = 0; at < found.length; at++) {
      found[at] = told.get(at).asInt();
    }
    return found;
  }

  /**
   * A part of a plan.
   *
   * @param some how many of the first files
   * @param of the file slices that are read
   */
  private ReadPlan(ReadPlan whole, int some, boolean merges, BitSet of) {
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
      boolean isKnown = stream < whole.ofStreams.size();
      if (!isKnown || isIn(of, whole.ofStreams.get(stream))) {
        merged.add(whole.merged.get(stream));
        ofStreams.add(isKnown ? whole.ofStreams.get(stream) : new int[0]);
      }
    }
    mergedRows = share(whole.mergedRows, merged.size(), whole.merged.size());
    List<Integer> left = new ArrayList<>();
    for (int at = 0; at < whole.ofKernel.length; at++) {
      if (of == null || of.get(whole.ofKernel[at])) {
        left.add(at);
      }
    }
    boolean hasKernel = merges && whole.kernel != null && (whole.ofKernel.length == 0 || !left.isEmpty());
    ofKernel = left.stream().mapToInt(at -> whole.ofKernel[at]).toArray();
    kernel = hasKernel ? named(whole, left) : null;
    kernelRows = hasKernel ? share(whole.kernelRows, left.size(), whole.ofKernel.length) : 0;
    kernelBytes = hasKernel ? share(whole.kernelBytes, left.size(), whole.ofKernel.length) : 0;
  }

  private static boolean isIn(BitSet chosen, int[] slices) {
    return chosen == null || slices.length == 0 || Arrays.stream(slices).anyMatch(chosen::get);
  }

  private static long share(long all, int some, int of) {
    return some == of ? all : all * some / of;
  }

  /** Options of the kernel that name some of its file slices. */
  private static Map<String, String> named(ReadPlan whole, List<Integer> left) {
    if (left.size() == whole.ofKernel.length) {
      return whole.kernel;
    }
    ObjectNode told = (ObjectNode) Channel.parsed(whole.kernel.get(KERNEL_SLICES));
    ArrayNode names = Channel.JSON.createArrayNode();
    left.forEach(at -> names.add(told.path("slices").get(at)));
    told.set("slices", names);
    Map<String, String> options = new HashMap<>(whole.kernel);
    options.put(KERNEL_SLICES, told.toString());
    return options;
  }

  /** The rows of the version, without those of the kernel. About so many, if file slices were left out. */
  long rows() {
    return files.stream().mapToLong(StoredFile::wanted).sum() + mergedRows;
  }

  /** About how many bytes are read. */
  long bytes() {
    long stored = files.stream().mapToLong(StoredFile::bytes).sum();
    return stored + merged.stream().mapToLong(stream -> stream.length).sum() + kernelBytes;
  }

  /** The file slices that a file has rows of. */
  int[] slicesOf(int file) {
    return ofFiles.get(file);
  }

  /** The file slice of merged rows. */
  int[] slicesOfStream(int stream) {
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
    return new ReadPlan(this, some, found < rows, chosen);
  }

  /** The plan without file slices that cannot hold rows that meet the conditions. */
  ReadPlan only(List<Expression> conditions, Map<String, Set<Object>> listed) {
    return slices.matching(conditions, listed).map(this::of).orElse(this);
  }

  private ReadPlan of(BitSet some) {
    if (chosen != null) {
      some.and(chosen);
    }
    return new ReadPlan(this, files.size(), true, some);
  }
}
