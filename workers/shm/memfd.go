package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	sealSize        = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	sealFutureWrite = 0x10 // F_SEAL_FUTURE_WRITE, linux/fcntl.h, since Linux 5.1
)

// newMemfd makes a memfd of size bytes, which is not inherited by children unless
// handed over.
func newMemfd(name string, size int64) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("shm: memfd_create: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return -1, errors.Join(fmt.Errorf("shm: size memfd to %d bytes: %w", size, err), unix.Close(fd))
	}
	return fd, nil
}

func seal(fd, seals int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("shm: seal memfd: %w", err)
	}
	return nil
}

// checkedSize is the size of a memfd that can't change any more.
func checkedSize(fd int) (int64, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("shm: descriptor %d is no memfd: %w", fd, err)
	}
	if seals&sealSize != sealSize {
		return 0, fmt.Errorf("shm: descriptor %d is not sealed against change of its size", fd)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("shm: fstat: %w", err)
	}
	if st.Size <= 0 {
		return 0, fmt.Errorf("shm: descriptor %d has %d bytes", fd, st.Size)
	}
	return st.Size, nil
}

func mapShared(fd int, size int64, writable bool) ([]byte, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes: %w", size, err)
	}
	return mem, nil
}

func roundToPage(size int64) int64 {
	page := int64(os.Getpagesize())
	return (size + page - 1) &^ (page - 1)
}
