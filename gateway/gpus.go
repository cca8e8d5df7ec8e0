package gateway

import (
	"io/fs"
	"regexp"
)

var gpuDevice = regexp.MustCompile(`^nvidia[0-9]+$`)

// findGPUs lists the CUDA ordinals of a host by the device files in its /dev: the
// gateway has no accelerator library, and a GPU without a file can't be opened by a
// worker either. CUDA numbers the GPUs that it can open from 0, so the ordinals are
// the files' places in their order. A worker whose GPU can't be used says so when it
// is started.
func findGPUs(dev fs.FS) []int {
	entries, err := fs.ReadDir(dev, ".")
	if err != nil {
		return nil // no /dev: no GPU
	}
	var found []int
	for _, e := range entries {
		if gpuDevice.MatchString(e.Name()) {
			found = append(found, len(found))
		}
	}
	return found
}
