package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

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
  /** About how many rows the kernel gives, at most, and how many bytes it reads. */
  final long kernelRows;
  final long kernelBytes;

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
    mergedRows = plan.path("streamRows").asLong();
    refusal = plan.path("refused").asText(null);
    this.hadoop = new HashMap<>(hadoop);
    JsonNode slices = plan.path("kernel");
    kernel = slices.isObject() ? LakeMergeCatalog.texts(slices.path("options")) : null;
    kernelRows = slices.path("rows").asLong();
    kernelBytes = slices.path("bytes").asLong();
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
          file.path("keeps").asBoolean()));
    }
  }

  private ReadPlan(ReadPlan whole, List<StoredFile> some, boolean merges) {
    refusal = whole.refusal;
    hadoop = whole.hadoop;
    files.addAll(some);
    merged.addAll(whole.merged);
    mergedRows = whole.mergedRows;
    kernel = merges ? whole.kernel : null;
    kernelRows = merges ? whole.kernelRows : 0;
    kernelBytes = merges ? whole.kernelBytes : 0;
  }

  /** The rows of the version, without those of the kernel. */
  long rows() {
    return files.stream().mapToLong(StoredFile::wanted).sum() + mergedRows;
  }

  /** About how many bytes are read. */
  long bytes() {
    long stored = files.stream().mapToLong(StoredFile::bytes).sum();
    return stored + merged.stream().mapToLong(stream -> stream.length).sum() + kernelBytes;
  }

  /** As much of the plan as has some number of rows, if it has so many. */
  ReadPlan limited(long rows) {
    List<StoredFile> some = new ArrayList<>();
    long found = mergedRows;
    for (StoredFile file : files) {
      if (found >= rows) {
        break;
      }
      some.add(file);
      found += file.wanted();
    }
    return new ReadPlan(this, some, found < rows);
  }
}
