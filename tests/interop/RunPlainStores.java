import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Opens message stores of RocketMQ brokers without DLedger, one after the other, with the jars of any version.
 *
 * Each line of standard input is a command with fields between tabs; the answer is a line with a JSON object:
 *
 * open ROLE NAME=VALUE...: starts a store with these settings of MessageStoreConfig and waits until it has dispatched
 * its log. Later commands refer to it. Returns minOffset and maxOffset. enableControllerMode=true is of BrokerConfig. A master accepts messages; before 5.0 it also
 * delivers delayed ones that are due.
 * dump FILE, queues, put COUNT TOPIC QUEUES: as in RunStore, but dump does not search for keys.
 * keys FILE: for each line TOPIC KEY of a file, the index's offsets, in order.
 * times FILE: for each line TOPIC QUEUE TIMESTAMP of a file, the queue offset found for it, in order.
 * epoch NUMBER: in controller mode, the store is the master of an epoch from here on; again NUMBER: it stays the master.
 * truncate POSITION: removes the log from there on, as a slave does that follows another master.
 * follow NUMBER ADDRESS: it is the slave of the master of an epoch, which listens at ADDRESS.
 * close: a clean shutdown of the store. A store that is not closed ends while the next ones are open.
 */
public final class RunPlainStores {
    private static final long PATIENCE_MS = 30_000;

    public static void main(String[] args) throws Exception {
        RunStore.answer("{\"started\": true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        DefaultMessageStore store = null;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            try {
                if (words[0].equals("open")) {
                    closeLater(store);
                    store = open(words);
                    RunStore.answer(state(store));
                } else if (words[0].equals("close")) {
                    store.shutdown();
                    store = null;
                    RunStore.answer("{\"closed\": true}");
                } else {
                    RunStore.answer(obey(store, words));
                }
            } catch (Throwable thrown) {
                thrown.printStackTrace();
                RunStore.answer("{\"error\": \"" + thrown.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"}");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMessageStore open(String[] words) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setHaListenPort(0);
        config.setBrokerRole(BrokerRole.valueOf(words[1]));
        config.setMaxMsgsNumBatch(1_000_000);
        // Never delete files, at any hour and at any disk usage.
        config.setFileReservedTime(1_000_000);
        config.setCleanFileForciblyEnable(false);
        BrokerConfig broker = new BrokerConfig();
        for (int i = 2; i < words.length; i++) {
            int equals = words[i].indexOf('=');
            if (words[i].equals("enableControllerMode=true")) {
                broker.setEnableControllerMode(true);
                continue;
            }
            RunStore.set(config, words[i].substring(0, equals), words[i].substring(equals + 1));
        }
        DefaultMessageStore store = RunStore.create(config, broker);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("the store does not dispatch its log");
            }
            Thread.sleep(10);
        }
        return store;
    }

    /** Ends a store, which takes a second. The threads of many open stores would keep a processor busy. */
    private static void closeLater(DefaultMessageStore store) {
        if (store != null) {
            Thread closing = new Thread(store::shutdown);
            closing.setDaemon(true);
            closing.start();
        }
    }

    private static String state(DefaultMessageStore store) {
        return String.format(
            "{\"minOffset\": %d, \"maxOffset\": %d}", store.getMinPhyOffset(), store.getMaxPhyOffset());
    }

    private static String obey(DefaultMessageStore store, String[] words) throws Exception {
        switch (words[0]) {
            case "dump":
                return RunStore.dump(store, words[1], false);
            case "queues":
                return RunStore.queues(store);
            case "put":
                store.recoverTopicQueueTable();
                return RunStore.put(store, Integer.parseInt(words[1]), words[2], Integer.parseInt(words[3]));
            case "epoch":
                Object service = store.getHaService();
                Object leads = service.getClass().getMethod("changeToMaster", int.class)
                    .invoke(service, Integer.parseInt(words[1]));
                return "{\"changed\": " + leads + "}";
            case "again":
                Object same = store.getHaService();
                Object stays = same.getClass().getMethod("changeToMasterWhenLastRoleIsMaster", int.class)
                    .invoke(same, Integer.parseInt(words[1]));
                return "{\"changed\": " + stays + "}";
            case "follow":
                Object slave = store.getHaService();
                Object follows = slave.getClass().getMethod("changeToSlave", String.class, int.class, Long.class)
                    .invoke(slave, words[2], Integer.parseInt(words[1]), 2L);
                slave.getClass().getMethod("updateHaMasterAddress", String.class).invoke(slave, words[2]);
                return "{\"changed\": " + follows + "}";
            case "state":
                return state(store);
            case "truncate":
                Object done = DefaultMessageStore.class.getMethod("truncateFiles", long.class)
                    .invoke(store, Long.parseLong(words[1]));
                return "{\"changed\": " + done + "}";
            case "keys":
                return keys(store, words[1]);
            case "times":
                return times(store, words[1]);
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private static String keys(DefaultMessageStore store, String file) throws Exception {
        List<Object> found = new ArrayList<>();
        for (String line : Files.readAllLines(Paths.get(file))) {
            String[] words = line.split("\t");
            found.add(RunStore.byKey(store, words[0], words[1]));
        }
        return "{\"offsets\": " + found + "}";
    }

    private static String times(DefaultMessageStore store, String file) throws Exception {
        List<Long> found = new ArrayList<>();
        for (String line : Files.readAllLines(Paths.get(file))) {
            String[] words = line.split("\t");
            found.add(store.getOffsetInQueueByTime(words[0], Integer.parseInt(words[1]), Long.parseLong(words[2])));
        }
        return "{\"offsets\": " + found + "}";
    }
}
