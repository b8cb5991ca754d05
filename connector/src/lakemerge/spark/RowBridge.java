package lakemerge.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.unsafe.Platform;

/**
 * Gives the rows that Spark pushes into a row-level write to a writer that pulls them: that of a Python data source.
 *
 * <p>A second thread of the task runs the writer. Rows wait for it in pages, of which there are at most {@value #PAGES}
 * with {@value #PAGE_BYTES} bytes each, so a task takes 16 MiB of heap whatever it writes. A row that is larger than a
 * page has one of its own. Both sides look every {@value #POLL_MS} ms whether the task was killed.
 */
final class RowBridge {
  private static final int PAGE_BYTES = 1 << 20;
  private static final int PAGES = 16;
  private static final int POLL_MS = 100;
  private static final int STOP_MS = 5000;
  private static final Page END = new Page();

  private final ArrayBlockingQueue<Page> waiting = new ArrayBlockingQueue<>(PAGES);
  private final TaskContext task = TaskContext.get();
  private final DataWriter<InternalRow> writer;
  private final int width;
  private final Thread consumer;
  private Page open = new Page();
  private volatile Throwable failure;
  private volatile boolean isDone;
  private volatile boolean isStopped;
  private volatile WriterCommitMessage result;

  /** @param width the number of columns of a row */
  RowBridge(DataWriter<InternalRow> writer, int width) {
    this.writer = writer;
    this.width = width;
    consumer = new Thread(this::consume, "lakemerge-rows-" + task.taskAttemptId());
    consumer.setDaemon(true);
    consumer.setContextClassLoader(Thread.currentThread().getContextClassLoader());
    consumer.start();
  }

  // The side of Spark's thread

  void put(UnsafeRow row) throws IOException {
    if (!open.add(row)) {
      hand(open);
      open = new Page();
      open.add(row);
    }
  }

  /** What the writer's commit gave, after all rows. */
  WriterCommitMessage end() throws IOException {
    if (open.rows > 0) {
      hand(open);
    }
    hand(END);
    try {
      while (consumer.isAlive()) {
        consumer.join(POLL_MS);
        task.killTaskIfInterrupted();
      }
    } catch (InterruptedException error) {
      throw interrupted();
    }
    check();
    return result;
  }

  /** Ends the other thread, whatever it does. */
  void stop() {
    isStopped = true;
    consumer.interrupt();
    boolean wasInterrupted = Thread.interrupted();
    try {
      consumer.join(STOP_MS);
    } catch (InterruptedException error) {
      wasInterrupted = true;
    }
    if (wasInterrupted) {
      Thread.currentThread().interrupt();
    }
    waiting.clear();
  }

  private void hand(Page page) throws IOException {
    try {
      do {
        task.killTaskIfInterrupted();
        check();
        if (isDone) {
          throw new IOException("the writer ended before all rows were written");
        }
      } while (!waiting.offer(page, POLL_MS, TimeUnit.MILLISECONDS));
    } catch (InterruptedException error) {
      throw interrupted();
    }
  }

  /** Raises the writer's error as it is: a wrapper would hide its condition. */
  private void check() {
    if (failure != null) {
      throw Errors.raise(failure);
    }
  }

  private IOException interrupted() {
    Thread.currentThread().interrupt();
    task.killTaskIfInterrupted();
    return new InterruptedIOException();
  }

  // The side of the writer's thread

  private void consume() {
    TaskContext$.MODULE$.setTaskContext(task);
    try {
      writer.writeAll(new Rows());
      result = writer.commit();
    } catch (Throwable error) {
      failure = error;
    } finally {
      isDone = true;
      TaskContext$.MODULE$.unset();
    }
  }

  private final class Rows implements Iterator<InternalRow> {
    private final UnsafeRow row = new UnsafeRow(width);
    private Page page;
    private int at;

    @Override
    public boolean hasNext() {
      while (page != END && (page == null || at >= page.rows)) {
        page = taken();
        at = 0;
      }
      return page != END;
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      int begin = page.ends[at];
      row.pointTo(page.bytes, Platform.BYTE_ARRAY_OFFSET + begin, page.ends[at + 1] - begin);
      at++;
      return row;
    }

    private Page taken() {
      Page found = null;
      while (found == null) {
        if (isStopped) {
          throw new IllegalStateException("Spark gave up this task");
        }
        task.killTaskIfInterrupted();
        try {
          found = waiting.poll(POLL_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
          throw new IllegalStateException("Spark gave up this task", error);
        }
      }
      return found;
    }
  }

  /** Rows, one after the other. */
  private static final class Page {
    byte[] bytes = new byte[PAGE_BYTES];
    int[] ends = new int[64];
    int rows;

    /** Whether the row fits. The first one always does. */
    boolean add(UnsafeRow row) {
      int size = row.getSizeInBytes();
      int begin = ends[rows];
      if (begin + size > bytes.length) {
        if (rows > 0) {
          return false;
        }
        bytes = new byte[size];
      }
      row.writeToMemory(bytes, Platform.BYTE_ARRAY_OFFSET + begin);
      rows++;
      if (rows == ends.length) {
        ends = Arrays.copyOf(ends, 2 * rows);
      }
      ends[rows] = begin + size;
      return true;
    }
  }
}
