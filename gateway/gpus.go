package gateway

import (
	"io/fs"
	"regexp"
	"slices"
	"strconv"
)

var gpuDevice = regexp.MustCompile(`^nvidia([0-9]+)$`)

// findGPUs lists the CUDA ordinals of a host by the device files in its /dev: the
// gateway has no accelerator library, and a GPU without a file can't be opened by a
// worker either. A worker whose GPU can't be used says so when it is started.
func findGPUs(dev fs.FS) []int {
	entries, err := fs.ReadDir(dev, ".")
	if err != nil {
		return nil // no /dev: no GPU
	}
	var found []int
	for _, e := range entries {
		m := gpuDevice.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if n, err := strconv.Atoi(m[1]); err == nil {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found
}
