// What tests/attach.sh attaches to: java Attached MIB. Threads with arrays and their checksums, garbage,
// reads into direct buffers. SIGTERM ends it: `right`.
import java.io.FileInputStream;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.atomic.*;
import java.util.zip.CRC32;

public class Attached {
    static final AtomicBoolean ended = new AtomicBoolean();
    static final AtomicReference<String> wrong = new AtomicReference<>();

    static long sum(byte[] block) {
        CRC32 sum = new CRC32();
        sum.update(block);
        return sum.getValue();
    }

    static void work(int number, int blocks) throws Exception {
        Random random = new Random(number);
        byte[][] mine = new byte[blocks][];
        long[] sums = new long[blocks];
        ByteBuffer direct = ByteBuffer.allocateDirect(1 << 20);
        for (int round = 0; !ended.get(); round++) {
            for (int at = 0; at < blocks; at++) {
                if (mine[at] != null && sum(mine[at]) != sums[at]) {
                    wrong.set("block " + at + " of thread " + number + " in round " + round);
                    ended.set(true);
                }
                if (mine[at] == null || random.nextInt(3) == 0) {
                    mine[at] = new byte[1 << 20];
                    for (int i = 0; i < 1 << 19; i += 16) mine[at][i] = (byte) random.nextInt();
                    try (FileInputStream file = new FileInputStream("/dev/urandom")) {
                        file.read(mine[at], 1 << 19, 1 << 16);
                        direct.clear().limit(1 << 16);
                        file.getChannel().read(direct);
                    }
                    sums[at] = sum(mine[at]);
                }
            }
            if (number == 0) System.out.println("round " + round);
            Thread.sleep(5);
        }
    }

    public static void main(String[] args) throws Exception {
        int blocks = Integer.parseInt(args[0]) / 4;
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ended.set(true);
            try { main.join(); } catch (InterruptedException e) { }
        }));
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < 4; n++) {
            final int number = n;
            threads.add(new Thread(() -> {
                try {
                    work(number, blocks);
                } catch (Throwable e) {
                    wrong.set(e.toString());
                    ended.set(true);
                }
            }));
        }
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        System.out.println(wrong.get() == null ? "right" : "WRONG " + wrong.get());
        System.out.flush();
        Runtime.getRuntime().halt(wrong.get() == null ? 0 : 1);
    }
}
