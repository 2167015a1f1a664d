// Maps, strings and slices of several goroutines, and a child: what programs of Go do.
//
// usage: job KEYS; prints what must be the same each time.
package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
)

const workers = 4

func main() {
	keys, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	found := map[string][]byte{}
	var lock sync.Mutex
	var all sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		all.Add(1)
		go func(worker int) {
			defer all.Done()
			for i := 0; i < keys/workers; i++ {
				key := fmt.Sprintf("key-%d-%d", worker, i)
				value := []byte(strings.Repeat(key, 12))
				lock.Lock()
				found[key] = value
				lock.Unlock()
			}
		}(worker)
	}
	all.Wait()
	runtime.GC()
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	sort.Strings(names)
	wrong, sum := 0, fnv.New64()
	for _, name := range names {
		if string(found[name]) != strings.Repeat(name, 12) {
			wrong++
		}
		sum.Write(found[name])
	}
	itself, _ := os.Executable()
	said, err := exec.Command("sh", "-c", "echo a child").Output()
	fmt.Println(len(names), sum.Sum64(), wrong, itself, strings.TrimSpace(string(said)), err)
}
