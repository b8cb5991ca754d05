package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;

/**
 * Parts of file slices that the merge kernel has to merge, as Python pickled them. Tasks are made of them here: to ask
 * Python for its tasks would plan the whole read once more.
 */
final class KernelParts {
  /** The beginning of a pickle of protocol 3 that calls {@code KernelPartition} with what follows. */
  private static final byte[] CALL =
      "\u0080\u0003clakemerge.datasource.partitions\nKernelPartition\n(".getBytes(StandardCharsets.ISO_8859_1);
  /** Makes a tuple of what was given, calls, and ends. */
  private static final byte[] CALLED = "tR.".getBytes(StandardCharsets.ISO_8859_1);
  private static final byte BYTES = 'B';
  private static final byte INTEGER = 'J';

  private final byte[] fileSlices;
  private final List<Part> parts;
  private final int atLeast;
  private final long taskBytes;

  /**
   * One of some even parts of a file slice.
   *
   * @param begin where the pickled file slice begins, in those of all
   * @param bytes about how many bytes of files it reads
   * @param slice the number of the file slice; -1 if that is not known
   */
  private record Part(int begin, int length, int number, int count, long bytes, int slice) {}

  KernelParts(JsonNode told) {
    fileSlices = Channel.unpacked(told.path("fileSlices").asText());
    parts = new ArrayList<>();
    int begin = 0;
    for (int at = 0; at < told.path("lengths").size(); at++) {
      int length = told.path("lengths").get(at).asInt();
      int count = told.path("counts").get(at).asInt();
      long bytes = told.path("bytes").get(at).asLong();
      int slice = told.path("slices").path(at).asInt(-1);
      for (int number = 0; number < count; number++) {
        parts.add(new Part(begin, length, number, count, bytes, slice));
      }
      begin += length;
    }
    atLeast = told.path("atLeast").asInt();
    taskBytes = told.path("taskBytes").asLong();
  }

  private KernelParts(KernelParts all, List<Part> some) {
    fileSlices = all.fileSlices;
    parts = some;
    atLeast = all.atLeast;
    taskBytes = all.taskBytes;
  }

  /** The parts of some file slices. */
  KernelParts of(IntPredicate slices) {
    return new KernelParts(this, parts.stream().filter(part -> slices.test(part.slice)).toList());
  }

  /** One part for each file slice, whose task reads little of it. */
  KernelParts whole() {
    return new KernelParts(
        this,
        parts.stream()
            .filter(part -> part.number == 0)
            .map(part -> new Part(part.begin, part.length, 0, 1, part.bytes, part.slice))
            .toList());
  }

  int count() {
    return parts.size();
  }

  /** About how many bytes are read. */
  long bytes() {
    return parts.stream().mapToLong(Part::bytes).sum();
  }

  /** Tasks of even size. The largest parts go first, to the task that has least. */
  List<InputPartition> tasks() {
    long wanted = Math.max(atLeast, -Math.floorDiv(-bytes(), taskBytes));
    int count = (int) Math.min(parts.size(), wanted);
    PriorityQueue<Task> filled =
        new PriorityQueue<>(Comparator.comparingLong((Task task) -> task.bytes).thenComparingInt(task -> task.number));
    List<Task> tasks = IntStream.range(0, count).mapToObj(Task::new).toList();
    filled.addAll(tasks);
    parts.stream().sorted(Comparator.comparingLong(part -> -part.bytes)).forEach(part -> {
      Task least = filled.poll();
      least.parts.add(part);
      least.bytes += part.bytes;
      filled.add(least);
    });
    return tasks.stream().<InputPartition>map(task -> new PythonInputPartition(task.number, pickled(task))).toList();
  }

  private static final class Task {
    private final int number;
    private final List<Part> parts = new ArrayList<>();
    private long bytes;

    Task(int number) {
      this.number = number;
    }
  }

  /** The pickle of what a task reads: of each part the file slice, the part's number, and how many there are. */
  private byte[] pickled(Task task) {
    ByteArrayOutputStream found = new ByteArrayOutputStream();
    found.writeBytes(CALL);
    for (Part part : task.parts) {
      write(found, BYTES, part.length);
      found.write(fileSlices, part.begin, part.length);
      write(found, INTEGER, part.number);
      write(found, INTEGER, part.count);
    }
    found.writeBytes(CALLED);
    return found.toByteArray();
  }

  private static void write(ByteArrayOutputStream into, byte operation, int number) {
    into.write(operation);
    into.writeBytes(ByteBuffer.allocate(Integer.BYTES).order(ByteOrder.LITTLE_ENDIAN).putInt(number).array());
  }
}
