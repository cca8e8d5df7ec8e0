package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// figures are what a server holds at one moment.
type figures struct {
	goroutines, fds   int
	resident          int64 // bytes of the gateway
	heap              int64 // bytes in use of its Go heap
	bodies            int64 // bytes of bodies that it counts
	arena             int64 // bytes of the request arena that are in use
	brought           int   // files that load calls brought
	workers           int
	workerFDs         int
	workerResident    int64 // bytes of the largest
	regions, mappings int   // files of ours in /dev/shm, and mappings or descriptors of such in the server
}

// String is the figures in one line.
func (f *figures) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %.0f MB resident, %.1f MB heap in use, %.0f kB of the request arena; %d workers, %d descriptors, %.0f MB resident; %d regions, %d mapped",
		f.goroutines, f.fds, mb(f.resident), mb(f.heap), mb(f.arena)*1000, f.workers, f.workerFDs, mb(f.workerResident), f.regions, f.mappings)
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

// look reads the figures of the server now.
func (s *server) look(ctx context.Context) (*figures, error) {
	values, err := s.scrape(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	f := &figures{goroutines: int(values["go_goroutines"]), heap: int64(values["go_memstats_heap_inuse_bytes"]), bodies: int64(values["sluice_body_memory_bytes"]),
		arena: int64(values["sluice_request_arena_used_bytes"])}
	pid := s.cmd.Process.Pid
	if f.resident, err = resident(pid); err != nil {
		return nil, err
	}
	if f.fds, err = descriptors(pid); err != nil {
		return nil, err
	}
	for _, w := range s.workers() {
		r, err1 := resident(w)
		n, err2 := descriptors(w)
		if err1 != nil || err2 != nil {
			continue // it ended
		}
		f.workers++
		f.workerFDs = max(f.workerFDs, n)
		f.workerResident = max(f.workerResident, r)
		f.mappings += mapped(w)
	}
	f.mappings += mapped(pid)
	if f.brought, err = s.brought(); err != nil {
		return nil, err
	}
	own, err := filepath.Glob("/dev/shm/" + regionPrefix() + "*")
	f.regions = len(own)
	return f, err
}

// brought counts the files that load calls brought and that the server keeps.
func (s *server) brought() (n int, err error) {
	err = filepath.WalkDir(s.temporary(), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		if os.IsNotExist(err) {
			return nil // it was removed meanwhile
		}
		return err
	})
	return n, err
}

// cpu is the time that the gateway and its living workers have used.
func (s *server) cpu() (used time.Duration) {
	for _, pid := range append(s.workers(), s.cmd.Process.Pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, f := range fields[11:13] { // utime and stime in hundredths of a second, proc(5)
			n, err := strconv.ParseInt(f, 10, 64)
			if err == nil {
				used += time.Duration(n) * 10 * time.Millisecond
			}
		}
	}
	return used
}

// regionPrefix begins the names of this process's regions.
func regionPrefix() string { return fmt.Sprintf("soak-%d-", os.Getpid()) }

// scrape reads the metrics without labels, and sums those with.
func (s *server) scrape(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metrics+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		name, _, _ := strings.Cut(line[:at], "{")
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			values[name] += v
		}
	}
	return values, errors.Join(lines.Err())
}

// workers are the living worker processes of the server.
func (s *server) workers() []int {
	var found []int
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(s.cmd.Process.Pid) {
			found = append(found, pid)
		}
	}
	return found
}

func resident(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm of %d is %q", pid, data)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

func descriptors(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries), err
}

// mapped counts the mappings and descriptors that a process has of regions of ours.
func mapped(pid int) int {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0
	}
	n := strings.Count(string(maps), "/dev/shm/"+regionPrefix())
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return n
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(folder, e.Name())); err == nil && strings.Contains(to, regionPrefix()) {
			n++
		}
	}
	return n
}

// more says what a server holds at rest that it did not hold at the first rest; of the
// memory of processes only where memory is true. Idle
// connections of honest clients, pooled memory and the runtime's own goroutines vary, so
// there is room, for arenas that were never full too; a leak in a soak passes any.
func (f *figures) more(than *figures, memory bool) error {
	var errs []error
	over := func(what string, got, most int64) {
		if got > most {
			errs = append(errs, fmt.Errorf("%s: %d, at most %d", what, got, most))
		}
	}
	over("goroutines", int64(f.goroutines), int64(than.goroutines)+40)
	over("descriptors", int64(f.fds), int64(than.fds)+10)
	over("worker's descriptors", int64(f.workerFDs), int64(than.workerFDs)+5)
	over("bytes of bodies", f.bodies, 0)
	over("bytes of the request arena", f.arena, than.arena+512<<10) // each instance keeps some for its descriptors
	over("files that load calls brought", int64(f.brought), int64(than.brought))
	if memory {
		over("resident bytes", f.resident, than.resident*5/4+requestArena+responseArena)
		over("heap bytes in use", f.heap, than.heap*3/2+48<<20)
		over("worker's resident bytes", f.workerResident, than.workerResident*5/4+48<<20)
	}
	over("regions in /dev/shm", int64(f.regions), 0)
	over("regions that are mapped or open", int64(f.mappings), 0)
	if f.workers != than.workers {
		errs = append(errs, fmt.Errorf("workers: %d, were %d", f.workers, than.workers))
	}
	return errors.Join(errs...)
}
