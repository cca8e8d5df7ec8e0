package stats

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// cpuReader reads the machine's processor and memory figures at a scrape. What can't
// be read is left out of the scrape.
type cpuReader struct {
	proc string

	mu          sync.Mutex
	busy, total uint64 // jiffies at the last scrape
}

func newCPUReader(proc string) *cpuReader {
	c := &cpuReader{proc: proc}
	c.busy, c.total, _ = c.jiffies()
	return c
}

func (c *cpuReader) collect(w writer) {
	if u, ok := c.utilization(); ok {
		w.gauge("nv_cpu_utilization", "Share of time the machine's processors were busy since the last scrape, 0 to 1.", u)
	}
	if total, available, ok := c.memory(); ok {
		w.gauge("nv_cpu_memory_total_bytes", "Memory of the machine.", float64(total))
		w.gauge("nv_cpu_memory_used_bytes", "Memory of the machine that is not available.", float64(total-min(available, total)))
	}
}

// utilization since the last call. Two scrapes within one jiffy read 0.
func (c *cpuReader) utilization() (float64, bool) {
	busy, total, ok := c.jiffies()
	if !ok {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	db, dt := busy-min(c.busy, busy), total-min(c.total, total)
	c.busy, c.total = busy, total
	if dt == 0 {
		return 0, true
	}
	return min(float64(db)/float64(dt), 1), true
}

// jiffies reads the first line of /proc/stat: user nice system idle iowait irq softirq
// steal; guest times are in user already. Source: proc_stat(5).
func (c *cpuReader) jiffies() (busy, total uint64, ok bool) {
	data, err := os.ReadFile(filepath.Join(c.proc, "stat"))
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) < 6 || words[0] != "cpu" {
		return 0, 0, false
	}
	for i, word := range words[1:min(len(words), 9)] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, 0, false
		}
		total += n
		if i != 3 && i != 4 {
			busy += n
		}
	}
	return busy, total, true
}

// memory reads MemTotal and MemAvailable in bytes. Source: proc_meminfo(5).
func (c *cpuReader) memory() (total, available uint64, ok bool) {
	data, err := os.ReadFile(filepath.Join(c.proc, "meminfo"))
	if err != nil {
		return 0, 0, false
	}
	found := 0
	for sc := bufio.NewScanner(bytes.NewReader(data)); found < 2 && sc.Scan(); {
		words := strings.Fields(sc.Text())
		if len(words) < 2 {
			continue
		}
		n, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			continue
		}
		switch words[0] {
		case "MemTotal:":
			total = n << 10
			found++
		case "MemAvailable:":
			available = n << 10
			found++
		}
	}
	return total, available, found == 2
}
