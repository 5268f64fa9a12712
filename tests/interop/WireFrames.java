import com.alibaba.fastjson.JSON;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.BatchAppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.GetEntriesRequest;
import io.openmessaging.storage.dledger.protocol.GetEntriesResponse;
import io.openmessaging.storage.dledger.protocol.HeartBeatRequest;
import io.openmessaging.storage.dledger.protocol.HeartBeatResponse;
import io.openmessaging.storage.dledger.protocol.LeadershipTransferRequest;
import io.openmessaging.storage.dledger.protocol.LeadershipTransferResponse;
import io.openmessaging.storage.dledger.protocol.MetadataRequest;
import io.openmessaging.storage.dledger.protocol.MetadataResponse;
import io.openmessaging.storage.dledger.protocol.PullEntriesRequest;
import io.openmessaging.storage.dledger.protocol.PushEntryRequest;
import io.openmessaging.storage.dledger.protocol.PushEntryResponse;
import io.openmessaging.storage.dledger.protocol.RequestOrResponse;
import io.openmessaging.storage.dledger.protocol.VoteRequest;
import io.openmessaging.storage.dledger.protocol.VoteResponse;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Writes and reads DLedger's messages with the real classes.
 *
 * "write" prints for each of some messages: name, request code, opaque, and the whole frame in base64. "read"
 * takes lines with a class of io.openmessaging.storage.dledger.protocol and a body in base64. It prints the body that
 * fastjson read, written again, or the exception.
 */
public final class WireFrames {
    private static final String PROTOCOL = "io.openmessaging.storage.dledger.protocol.";

    public static void main(String[] args) throws Exception {
        if (args[0].equals("write")) {
            write();
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            String answer;
            try {
                byte[] data = Base64.getDecoder().decode(fields[1]);
                answer = read(fields[0], data);
            } catch (Throwable thrown) {
                answer = "throws\t" + thrown.getClass().getSimpleName();
            }
            System.out.println(answer);
        }
    }

    private static String read(String name, byte[] body) throws Exception {
        Object message = JSON.parseObject(body, Class.forName(PROTOCOL + name));
        return "reads\t" + base64(JSON.toJSONString(message).getBytes("UTF-8"));
    }

    private static void write() throws Exception {
        request("metadata", 50000, ids(new MetadataRequest()));
        MetadataResponse metadata = ids(new MetadataResponse());
        metadata.setPeers(new HashMap<>());
        metadata.getPeers().put("n0", "127.0.0.1:20911");
        metadata.getPeers().put("n1", "[::1]:20912");
        answer("metadata-answer", 50000, metadata);
        answer("metadata-unknown-group", 50000, code(new MetadataResponse(), 400));

        request("append", 50001, append("hello".getBytes("UTF-8")));
        request("append-empty", 50001, append(new byte[0]));
        request("append-nothing", 50001, append(null));
        request("append-every-byte", 50001, append(bytes(256)));
        BatchAppendEntryRequest batchAppend = ids(new BatchAppendEntryRequest());
        batchAppend.setBatchMsgs(Arrays.asList(bytes(1), bytes(2)));
        request("append-batch", 50001, batchAppend);
        AppendEntryResponse appended = ids(new AppendEntryResponse());
        appended.setIndex(Long.MAX_VALUE);
        appended.setPos(1234567890123L);
        answer("append-answer", 50001, appended);
        answer("append-not-leader", 50001, code(ids(new AppendEntryResponse()), 404));

        GetEntriesRequest get = ids(new GetEntriesRequest());
        get.setBeginIndex(7L);
        request("get", 50002, get);
        GetEntriesResponse got = ids(new GetEntriesResponse());
        got.getEntries().add(entry(7, 3, 4096, bytes(5)));
        answer("get-answer", 50002, got);
        answer("get-out-of-range", 50002, code(new GetEntriesResponse(), 410));

        VoteRequest vote = ids(new VoteRequest());
        vote.setLedgerEndIndex(41);
        vote.setLedgerEndTerm(2);
        request("vote", 51001, vote);
        for (VoteResponse.RESULT result : VoteResponse.RESULT.values()) {
            answer("vote-answer-" + result, 51001, ids(new VoteResponse()).voteResult(result));
        }
        request("heart-beat", 51002, ids(new HeartBeatRequest()));
        answer("heart-beat-answer", 51002, ids(new HeartBeatResponse()));
        request("pull", 51003, ids(new PullEntriesRequest()));
        pushes();

        LeadershipTransferRequest transfer = ids(new LeadershipTransferRequest());
        transfer.setTransferId("n0");
        transfer.setTransfereeId("n1");
        request("transfer", 51005, transfer);
        transfer.setTakeLeadershipLedgerIndex(99);
        request("transfer-take", 51005, transfer);
        answer("transfer-answer", 51005, code(ids(new LeadershipTransferResponse()), 417));
        texts();
        refusals();
    }

    private static void pushes() throws Exception {
        PushEntryRequest commit = ids(new PushEntryRequest());
        commit.setType(PushEntryRequest.Type.COMMIT);
        commit.setCommitIndex(12);
        request("push-commit", 51004, commit);
        for (String type : new String[] {"APPEND", "COMPARE", "TRUNCATE"}) {
            PushEntryRequest push = ids(new PushEntryRequest());
            push.setType(PushEntryRequest.Type.valueOf(type));
            push.setCommitIndex(-1);
            push.setEntry(entry(13, 3, 8192, bytes(100)));
            request("push-" + type.toLowerCase(), 51004, push);
        }
        PushEntryRequest batch = ids(new PushEntryRequest());
        for (int number = 0; number < 3; number++) {
            batch.addEntry(entry(13 + number, 3, 8192 + number * 50, bytes(2)));
        }
        request("push-batch", 51004, batch);
        PushEntryRequest single = ids(new PushEntryRequest());
        single.addEntry(entry(13, 3, 8192, bytes(2)));
        request("push-batch-of-one", 51004, single);
        PushEntryRequest twice = ids(new PushEntryRequest());
        twice.setEntry(entry(13, 3, 8192, bytes(2)));
        twice.addEntry(twice.getEntry());
        request("push-reference", 51004, twice);
        PushEntryResponse pushed = new PushEntryResponse();
        pushed.setGroup("g1");
        pushed.setTerm(3);
        pushed.setIndex(13L);
        pushed.setBeginIndex(0);
        pushed.setEndIndex(15);
        pushed.setCount(3);
        answer("push-answer", 51004, pushed);
        PushEntryResponse committed = new PushEntryResponse();
        committed.setGroup("g1");
        committed.setTerm(3);
        committed.setBeginIndex(-1);
        committed.setEndIndex(-1);
        answer("push-commit-answer", 51004, committed);
    }

    /** Characters that need escapes or several bytes. */
    private static void texts() throws Exception {
        StringBuilder low = new StringBuilder();
        for (char character = 0; character < 256; character++) {
            low.append(character);
        }
        String[] groups = {low.toString(), "\u2027\u2028\u2029\u202a\ufeff\ufffe\uffff", "\u4e2d\u6587 \ud83d\ude00", ""};
        for (int number = 0; number < groups.length; number++) {
            HeartBeatRequest request = new HeartBeatRequest();
            request.setGroup(groups[number]);
            request("text-" + number, 51002, request);
        }
    }

    /** Encodes like NettyRemotingAbstract. */
    private static void refusals() throws Exception {
        String remark = " request type 51006 not supported";
        command("refused-unsupported", 51006, RemotingCommand.createResponseCommand(3, remark));
        command("refused-error", 51004, RemotingCommand.createResponseCommand(1, "java.lang.NullPointerException\n\tat \"x\""));
    }

    private static <T extends RequestOrResponse> T ids(T message) {
        message.setGroup("g1");
        message.setIds("n0", "n1", "n0");
        message.setTerm(3);
        return message;
    }

    private static <T extends RequestOrResponse> T code(T message, int code) {
        message.setCode(code);
        return message;
    }

    private static AppendEntryRequest append(byte[] body) {
        AppendEntryRequest request = ids(new AppendEntryRequest());
        request.setBody(body);
        return request;
    }

    private static DLedgerEntry entry(long index, long term, long pos, byte[] body) {
        DLedgerEntry entry = new DLedgerEntry();
        entry.setMagic(1);
        entry.setIndex(index);
        entry.setTerm(term);
        entry.setPos(pos);
        entry.setBody(body);
        entry.computeSizeInBytes();
        return entry;
    }

    private static byte[] bytes(int count) {
        byte[] bytes = new byte[count];
        for (int place = 0; place < count; place++) {
            bytes[place] = (byte) place;
        }
        return bytes;
    }

    private static void request(String name, int code, RequestOrResponse message) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, null);
        command.setBody(JSON.toJSONBytes(message));
        command(name, code, command);
    }

    private static void answer(String name, int code, RequestOrResponse message) throws Exception {
        RemotingCommand command = RemotingCommand.createResponseCommand(200, null);
        command.setBody(JSON.toJSONBytes(message));
        command(name, code, command);
    }

    private static void command(String name, int code, RemotingCommand command) throws Exception {
        command.setOpaque(code % 1000 + 7);
        ByteBuffer frame = command.encode();
        byte[] bytes = new byte[frame.remaining()];
        frame.get(bytes);
        System.out.println(name + "\t" + code + "\t" + command.getOpaque() + "\t" + base64(bytes));
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
