// Runs a program so many times at once, and prints what each has printed.
//
// usage: run TIMES PROGRAM [WORD...]
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
)

func main() {
	times, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	outputs := make([]string, times)
	var all sync.WaitGroup
	for one := range outputs {
		all.Add(1)
		go func() {
			defer all.Done()
			// Of what is not there, and of a program that fails, an error comes back.
			if _, err := exec.Command("/nothing/there").Output(); err == nil {
				panic("it is there")
			}
			output, err := exec.Command(os.Args[2], os.Args[3:]...).CombinedOutput()
			outputs[one] = fmt.Sprintf("%s%v\n", output, err)
		}()
	}
	all.Wait()
	for _, output := range outputs {
		fmt.Print(output)
	}
}
