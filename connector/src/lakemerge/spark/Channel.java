package lakemerge.spark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.github.luben.zstd.Zstd;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.types.Metadata;

/**
 * Requests to LakeMerge's Python, as JSON. The catalog knows nothing of tables itself: what a table is, and how one is
 * made, changed and dropped, is decided there.
 *
 * <p>A request goes to a Python data source as an option, and the answer comes back in its schema: Spark keeps a Python
 * process for that, so a request takes some 40 ms.
 */
final class Channel {
  /** Long bytes are one text in a plan. Jackson refuses more than 20 million characters, unless it is told otherwise. */
  static final ObjectMapper JSON = new ObjectMapper(JsonFactory.builder()
      .streamReadConstraints(StreamReadConstraints.builder().maxStringLength(Integer.MAX_VALUE).build())
      .build());
  /** Which sources this jar was built from. Python refuses the jar of another version of itself. */
  static final String VERSION = version();

  private final Map<String, String> storage;
  private final String source;
  private final String option;

  /** @param storage storage options; they are sent along with each request, and are in nothing else. */
  Channel(Map<String, String> storage) {
    this(storage, "lakemerge_catalog", "request");
  }

  /**
   * @param source the data source that answers
   * @param option the option in which it takes a request
   */
  Channel(Map<String, String> storage, String source, String option) {
    this.storage = storage;
    this.source = source;
    this.option = option;
  }

  static ObjectNode request(String operation) {
    return JSON.createObjectNode().put("do", operation).put("connector", VERSION);
  }

  /**
   * The answer to a request. An error is raised as {@link Errors#answered} says.
   *
   * @param table the table or namespace that it is about, for errors
   */
  JsonNode ask(ObjectNode request, Identifier table) {
    ObjectNode options = request.putObject("storage");
    storage.forEach(options::put);
    Metadata told = new PythonSource(source, Map.of(option, request.toString())).schema().apply(0).metadata();
    JsonNode answer = told.contains("answer")
        ? parsed(told.getString("answer"))
        : parsed(unpacked(String.join("", told.getStringArray("packed"))));
    if (answer.has("error")) {
      throw Errors.answered(answer.get("error"), table);
    }
    return answer;
  }

  private static String version() {
    try (InputStream file = Channel.class.getResourceAsStream("version")) {
      return new String(file.readAllBytes(), StandardCharsets.UTF_8).strip();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Bytes that Python has packed: their number, and the bytes, compressed, in Base64. */
  static byte[] unpacked(String text) {
    int space = text.indexOf(' ');
    int length = Integer.parseInt(text.substring(0, space));
    return length == 0 ? new byte[0] : Zstd.decompress(Base64.getDecoder().decode(text.substring(space + 1)), length);
  }

  static JsonNode parsed(String text) {
    return parsed(text.getBytes(StandardCharsets.UTF_8));
  }

  static JsonNode parsed(byte[] text) {
    try {
      return JSON.readTree(text);
    } catch (IOException error) {
      throw new IllegalArgumentException("LakeMerge's Python did not answer in JSON", error);
    }
  }
}
