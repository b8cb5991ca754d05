package lakemerge.spark;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A Parquet file of a table, or a part of one, and which of its rows a version has.
 *
 * @param url where it is
 * @param bytes the size of the whole file
 * @param rows the rows of the whole file; -1 if the table does not say
 * @param wanted how many of them the version has
 * @param bits a bit for each row, up to the last that is set; {@code null}: the version has all rows
 * @param skipped before the first of the bits there are so many words without any that is set
 * @param keeps whether the bits are set for the rows that the version has, or for those that it does not have
 * @param start where the part begins
 * @param end where it ends
 */
record StoredFile(
    String url, long bytes, long rows, long wanted, long[] bits, int skipped, boolean keeps, long start, long end)
    implements Serializable {

  /** A file as a whole. */
  StoredFile(String url, long bytes, long rows, long wanted, long[] bits, int skipped, boolean keeps) {
    this(url, bytes, rows, wanted, bits, skipped, keeps, 0, Long.MAX_VALUE);
  }

  /** Whole files, each once. The same log file has records of several file slices. */
  static List<StoredFile> once(List<StoredFile> files) {
    Map<String, StoredFile> found = new LinkedHashMap<>();
    for (StoredFile file : files) {
      found.merge(file.url, file, StoredFile::with);
    }
    return new ArrayList<>(found.values());
  }

  private StoredFile with(StoredFile other) {
    if (!keeps || !other.keeps) {
      throw new IllegalArgumentException("a plan names " + url + " twice");
    }
    int begin = Math.min(skipped, other.skipped);
    long[] both = new long[Math.max(skipped + bits.length, other.skipped + other.bits.length) - begin];
    for (StoredFile each : List.of(this, other)) {
      for (int word = 0; word < each.bits.length; word++) {
        both[each.skipped - begin + word] |= each.bits[word];
      }
    }
    return new StoredFile(url, bytes, rows, wanted + other.wanted, both, begin, true);
  }

  /** One of some even parts. Spark reads the row groups whose middle is in the part. */
  StoredFile part(int number, int count) {
    long from = bytes * number / count;
    // The last part has no end, so that no row group is lost if the file is longer than the table says.
    long to = number + 1 == count ? Long.MAX_VALUE : bytes * (number + 1) / count;
    return new StoredFile(url, bytes, rows, wanted, bits, skipped, keeps, from, to);
  }

  boolean isWhole() {
    return start == 0 && end == Long.MAX_VALUE;
  }

  /** About how many bytes the part has. */
  long share() {
    return Math.min(end, bytes) - start;
  }

  /** The bytes that the bits take. */
  long bitBytes() {
    return bits == null ? 0 : 8L * bits.length;
  }

  StoredFile withBits(long[] other) {
    return new StoredFile(url, bytes, rows, wanted, other, skipped, keeps, start, end);
  }

  /** Whether the version has a row. */
  boolean has(long row) {
    int word = (int) (row >> 6) - skipped;
    return bits == null || (word >= 0 && word < bits.length && (bits[word] >> row & 1) != 0) == keeps;
  }
}
