// Objects, maps, arrays, garbage and threads: java Job ROUNDS
import java.security.MessageDigest;
import java.util.*;

public class Job {
    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        String[] results = new String[2];
        Thread[] threads = new Thread[results.length];
        for (int n = 0; n < threads.length; n++) {
            final int number = n;
            threads[n] = new Thread(() -> results[number] = work(number, rounds));
            threads[n].start();
        }
        for (Thread thread : threads) thread.join();
        for (String result : results) System.out.println(result);
    }

    static String work(int number, int rounds) {
        try {
            Random random = new Random(number);
            MessageDigest hash = MessageDigest.getInstance("MD5");
            Map<Long, String[]> table = new HashMap<>();
            List<int[]> arrays = new ArrayList<>();
            for (int round = 0; round < rounds; round++) {
                for (int i = 0; i < 12_000; i++) {
                    table.put(random.nextLong(),
                        new String[] {"" + i, "value " + random.nextInt(), "x".repeat(i % 60)});
                }
                int[] array = random.ints(1 << 18).toArray();
                Arrays.sort(array);
                arrays.add(array);
                List<Long> keys = new ArrayList<>(table.keySet());
                Collections.sort(keys);
                for (int i = 0; i < keys.size(); i += 13) {
                    hash.update(String.join(",", table.get(keys.get(i))).getBytes());
                    if (i % 2 == 0) table.remove(keys.get(i));
                }
            }
            long sum = 0;
            for (int[] array : arrays) for (int value : array) sum = sum * 31 + value;
            return table.size() + " " + sum + " " + HexFormat.of().formatHex(hash.digest());
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }
}
