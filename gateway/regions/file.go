package regions

import (
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// reserved are prefixes of keys that no client may name: the memory of the original's
// Python backend, and ours.
// Source: the original's fix of CVE-2025-23319 and its siblings.
var reserved = [...]string{"triton_python_backend_shm_region_", "sluice_"}

// maxKey is the longest name that a file can have.
const maxKey = 255

// errOpen is the original's word on a key that can't be opened, whatever the reason: what
// exists on this host is nobody's business.
func errOpen(key string) error {
	return infer.CallerErrorf("Unable to open shared memory region: '%s'", strings.ToValidUTF8(key, "\uFFFD"))
}

// errArgs is the original's word on a range that its file has not.
func errArgs(name string) error {
	return infer.Errorf(infer.InvalidArg, "failed to register shared memory region '%s': invalid args", name)
}

// errOpenUnknown is errOpen for a user who is not known. It is the same whether or not there
// is such a file.
func errOpenUnknown(key string) error {
	return infer.CallerErrorf("Unable to open shared memory region: '%s': the server can't tell which user calls, "+
		"so its file must be readable and writable by everybody, or its key must begin as --client-shm-prefix says",
		strings.ToValidUTF8(key, "\uFFFD"))
}

// nameOf is the name of the file that a principal's key stands for. It is one of the folder
// itself, and text: lists of regions repeat it, to others of the same owner too.
// Source: shm_open(3), which passes over slashes before the name.
func (r *Registry) nameOf(key, principal string) (string, error) {
	name := strings.TrimLeft(key, "/")
	if name == "" || name == "." || name == ".." || len(name) > maxKey || strings.ContainsAny(name, "/\x00") || !utf8.ValidString(name) {
		return "", errOpen(key)
	}
	for _, p := range reserved {
		if strings.HasPrefix(name, p) {
			return "", infer.Errorf(infer.InvalidArg, "shared memory key '%s' is reserved: keys must not begin with '%s'",
				key, p)
		}
	}
	if !r.listed(name, principal) {
		return "", infer.Errorf(infer.InvalidArg,
			"shared memory key '%s' is not allowed: --client-shm-prefix names what keys may begin with", key)
	}
	return name, nil
}

func (r *Registry) listed(name, principal string) bool {
	for _, p := range r.cfg.Prefixes {
		if begins, ok := prefixFor(p, principal); ok && strings.HasPrefix(name, begins) {
			return true
		}
	}
	return len(r.cfg.Prefixes) == 0
}

// open opens a file of the folder.
func (r *Registry) open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(r.folder.Fd()), name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "region"), nil
}
