// Package nvml reads the state of one NVIDIA GPU. Where there is no driver, no such
// GPU, or a build without cgo, Open returns nil: that is silence and no error. The
// worker calls it; the gateway never does, since it is built without cgo.
//
// A GPU is for one goroutine at a time.
package nvml

import "strings"

// identifier finds what the CUDA ordinal stands for: an entry of the environment's
// list of visible devices ("0,2" or "GPU-<uuid>,…"), else the ordinal itself.
// Source: CUDA programming guide, CUDA_VISIBLE_DEVICES; the list ends at the first
// entry that is empty.
func identifier(ordinal int, visible string) (index int, uuid string, ok bool) {
	if visible == "" {
		return ordinal, "", true
	}
	entries := strings.Split(visible, ",")
	if ordinal >= len(entries) {
		return 0, "", false
	}
	e := strings.TrimSpace(entries[ordinal])
	if e == "" {
		return 0, "", false
	}
	n := 0
	for _, c := range e {
		if c < '0' || c > '9' || n > 1<<16 {
			return 0, e, true
		}
		n = n*10 + int(c-'0')
	}
	return n, "", true
}
