// What tests/attach.sh attaches to: attached MIB, a static program. Goroutines with blocks and their
// checksums, files that are read, garbage, and a child. SIGTERM ends it: `right`.
package main

import (
	"fmt"
	"hash/crc32"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const workers = 4

var ended atomic.Bool

func fail(what ...any) {
	fmt.Println(append([]any{"WRONG"}, what...)...)
	os.Exit(1)
}

func work(number, blocks int) {
	random := rand.New(rand.NewSource(int64(number)))
	mine, sums := make([][]byte, blocks), make([]uint32, blocks)
	source, _ := os.Open("/dev/urandom")
	for round := 0; !ended.Load(); round++ {
		for at := range mine {
			if mine[at] != nil && crc32.ChecksumIEEE(mine[at]) != sums[at] {
				fail("block", at, "of", number, "in round", round)
			}
			if mine[at] == nil || random.Intn(3) == 0 {
				mine[at] = make([]byte, 1<<20)
				random.Read(mine[at][:1<<19])
			}
			if n, err := source.Read(mine[at][4096 : 4096+1<<15]); err != nil {
				fail("a read", n, err)
			}
			sums[at] = crc32.ChecksumIEEE(mine[at])
		}
		if number == 0 {
			if said, err := exec.Command("sh", "-c", "echo said").Output(); string(said) != "said\n" {
				fail("the child", string(said), err)
			}
			fmt.Println("round", round)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func main() {
	size, _ := strconv.Atoi(os.Args[1])
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() { <-signals; ended.Store(true) }()
	var all sync.WaitGroup
	for number := 0; number < workers; number++ {
		all.Add(1)
		go func() { defer all.Done(); work(number, size/workers) }()
	}
	all.Wait()
	fmt.Println("right")
}
