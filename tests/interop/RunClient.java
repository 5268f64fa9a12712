import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.GetEntriesResponse;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;

/**
 * Runs Java's DLedgerClient. Arguments: the group and its peers (n0-host:port;...).
 *
 * Each line of standard input is a command; the answer is a line with a JSON object:
 *
 * append BASE64: appends an entry. get INDEX: reads an entry. transfer FROM TO TERM: transfers leadership.
 * load THREADS SIZE TAG: threads start to append bodies "TAG-THREAD-NUMBER " padded with dots.
 * acknowledged: the number of acknowledged appends.
 * unload: ends the load; returns acknowledged appends as [index, pos, "TAG-THREAD-NUMBER"] and a count for each other
 * response code.
 */
public final class RunClient {
    private static volatile boolean isLoading;
    private static final List<Thread> THREADS = new ArrayList<>();
    private static final List<String> ACKNOWLEDGED = new ArrayList<>();
    private static final Map<Integer, Integer> OTHERS = new TreeMap<>();

    public static void main(String[] args) throws Exception {
        DLedgerClient client = new DLedgerClient(args[0], args[1]);
        client.startup();
        answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answer(obey(client, line.split(" ")));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static String obey(DLedgerClient client, String[] words) throws Exception {
        switch (words[0]) {
            case "append":
                AppendEntryResponse appended = client.append(Base64.getDecoder().decode(words[1]));
                return String.format("{\"code\": %d, \"index\": %d, \"pos\": %d, \"term\": %d}", appended.getCode(),
                    appended.getIndex(), appended.getPos(), appended.getTerm());
            case "get":
                return got(client.get(Long.parseLong(words[1])));
            case "transfer":
                int code = client.leadershipTransfer(words[1], words[2], Long.parseLong(words[3])).getCode();
                return "{\"code\": " + code + "}";
            case "load":
                return load(client, Integer.parseInt(words[1]), Integer.parseInt(words[2]), words[3]);
            case "acknowledged":
                synchronized (ACKNOWLEDGED) {
                    return "{\"acknowledged\": " + ACKNOWLEDGED.size() + "}";
                }
            case "unload":
                return unload();
            default:
                return "{\"error\": \"no command " + words[0] + "\"}";
        }
    }

    private static String got(GetEntriesResponse response) {
        if (response.getEntries() == null || response.getEntries().isEmpty()) {
            return "{\"code\": " + response.getCode() + "}";
        }
        DLedgerEntry entry = response.getEntries().get(0);
        return String.format("{\"code\": %d, \"index\": %d, \"term\": %d, \"pos\": %d, \"body\": \"%s\"}",
            response.getCode(), entry.getIndex(), entry.getTerm(), entry.getPos(),
            Base64.getEncoder().encodeToString(entry.getBody()));
    }

    private static String load(DLedgerClient client, int threads, int size, String tag) {
        isLoading = true;
        for (int number = 0; number < threads; number++) {
            String name = tag + "-" + number;
            Thread thread = new Thread(() -> appendOn(client, name, size));
            THREADS.add(thread);
            thread.start();
        }
        return "{\"threads\": " + threads + "}";
    }

    private static void appendOn(DLedgerClient client, String name, int size) {
        for (int number = 0; isLoading; number++) {
            String text = name + "-" + number;
            byte[] start = (text + " ").getBytes(StandardCharsets.UTF_8);
            byte[] body = Arrays.copyOf(start, Math.max(size, start.length));
            Arrays.fill(body, start.length, body.length, (byte) '.');
            AppendEntryResponse response = client.append(body);
            synchronized (ACKNOWLEDGED) {
                if (response.getCode() == 200) {
                    ACKNOWLEDGED.add("[" + response.getIndex() + ", " + response.getPos() + ", \"" + text + "\"]");
                } else {
                    OTHERS.merge(response.getCode(), 1, Integer::sum);
                }
            }
        }
    }

    private static String unload() throws Exception {
        isLoading = false;
        for (Thread thread : THREADS) {
            thread.join();
        }
        THREADS.clear();
        synchronized (ACKNOWLEDGED) {
            StringJoiner others = new StringJoiner(", ", "{", "}");
            OTHERS.forEach((code, count) -> others.add("\"" + code + "\": " + count));
            String text = "{\"acknowledged\": " + ACKNOWLEDGED + ", \"others\": " + others + "}";
            ACKNOWLEDGED.clear();
            OTHERS.clear();
            return text;
        }
    }
}
