package lakemerge.spark;

import java.io.IOException;
import java.io.InputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The builds of Spark whose Parquet reader LakeMerge's scan knows. Vendors give their own builds the number of Spark's,
 * so a build is known by the classes that {@link SparkReader} and {@link KernelBatches} rely on.
 */
final class KnownReaders {
  /** {@code python -m scripts.reader_digests} prints the digest of an installed pyspark. */
  static final List<String> CLASSES = List.of(
      "org/apache/parquet/column/page/PageReadStore",
      "org/apache/parquet/hadoop/ColumnChunkPageReadStore",
      "org/apache/parquet/hadoop/ParquetFileReader",
      "org/apache/spark/api/python/BasePythonRunner$ReaderIterator",
      "org/apache/spark/sql/execution/RowToColumnConverter",
      "org/apache/spark/sql/execution/datasources/PartitionedFile",
      "org/apache/spark/sql/execution/datasources/RecordReaderIterator",
      "org/apache/spark/sql/execution/datasources/parquet/ParquetColumnVector",
      "org/apache/spark/sql/execution/datasources/parquet/ParquetFileFormat",
      "org/apache/spark/sql/execution/datasources/parquet/ParquetReadState",
      "org/apache/spark/sql/execution/datasources/parquet/SpecificParquetRecordReaderBase",
      "org/apache/spark/sql/execution/datasources/parquet/SpecificParquetRecordReaderBase$ParquetRowGroupReader",
      "org/apache/spark/sql/execution/datasources/parquet/SpecificParquetRecordReaderBase$ParquetRowGroupReaderImpl",
      "org/apache/spark/sql/execution/datasources/parquet/VectorizedColumnReader",
      "org/apache/spark/sql/execution/datasources/parquet/VectorizedParquetRecordReader",
      "org/apache/spark/sql/execution/datasources/v2/python/PythonPartitionReaderFactory",
      "org/apache/spark/sql/execution/vectorized/OffHeapColumnVector",
      "org/apache/spark/sql/execution/vectorized/OnHeapColumnVector",
      "org/apache/spark/sql/execution/vectorized/WritableColumnVector",
      "org/apache/spark/sql/vectorized/ArrowColumnVector",
      "org/apache/spark/sql/vectorized/ColumnVector",
      "org/apache/spark/sql/vectorized/ColumnarBatch");

  private static final Map<String, String> KNOWN = Map.of(
      "9ba6d5891832a8f89f0a958cfad1942d", "4.0.2",
      "34c33455e1715990623c1151bbcb54f5", "4.1.1",
      "a677147fbfa05236816e2f3a715899dd", "4.1.4",
      "e6bb4bf50968294e6a147c68760dcbcf", "4.2.0",
      "fe4cc45572296a27f6894b22a3e7dfdc", "4.2.1",
      "b5fabad3d6248b7eb67d3446e2474288", "4.3.0");

  private static final Optional<String> REFUSAL = refusal(KnownReaders.class.getClassLoader());

  private KnownReaders() {}

  /** Why the Spark that runs is not known; nothing if it is. */
  static Optional<String> refusal() {
    return REFUSAL;
  }

  /** The same for the Spark of a class loader. */
  static Optional<String> refusal(ClassLoader spark) {
    String found;
    try {
      found = digest(spark);
    } catch (IOException error) {
      return Optional.of("this build of Spark lacks classes of the one that LakeMerge's scan knows");
    }
    if (KNOWN.containsKey(found)) {
      return Optional.empty();
    }
    return Optional.of("LakeMerge's scan does not know the Parquet reader of this build of Spark (" + found + ")");
  }

  private static String digest(ClassLoader spark) throws IOException {
    try {
      MessageDigest all = MessageDigest.getInstance("SHA-256");
      for (String name : CLASSES) {
        try (InputStream file = spark.getResourceAsStream(name + ".class")) {
          if (file == null) {
            throw new IOException(name);
          }
          all.update(file.readAllBytes());
        }
      }
      return HexFormat.of().formatHex(all.digest()).substring(0, 32);
    } catch (NoSuchAlgorithmException error) {
      throw new IOException(error);
    }
  }
}
