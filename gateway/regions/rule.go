package regions

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// source is the memory that a region is of, by whatever name it was registered. The zero
// value is memory of which that is not known.
type source struct {
	dev, ino uint64 // of a file
	cuda     infer.CUDAHandle
}

// file is what the kernel says of an open file.
type file struct {
	source source
	memory bool // a regular file of tmpfs, open for reading and for writing
	size   int64
	uid    uint32
	mode   uint32 // permissions
	links  uint64 // names that it has
}

// statFile asks the kernel about a file that is open: what its name stands for meanwhile
// does not matter.
func statFile(f *os.File) (all file, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return all, err
	}
	failed := raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		var fs unix.Statfs_t
		flags, wrong := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err = errors.Join(wrong, unix.Fstat(int(fd), &st), unix.Fstatfs(int(fd), &fs)); err != nil {
			return
		}
		all = file{source: source{dev: uint64(st.Dev), ino: st.Ino}, size: st.Size, uid: st.Uid,
			mode: st.Mode &^ unix.S_IFMT, links: uint64(st.Nlink),
			memory: st.Mode&unix.S_IFMT == unix.S_IFREG && fs.Type == unix.TMPFS_MAGIC && flags&unix.O_ACCMODE == unix.O_RDWR}
	})
	return all, errors.Join(failed, err)
}

// everybody is the permissions of a file that every user may read and write.
const everybody = unix.S_IROTH | unix.S_IWOTH

// mayUse says that a caller may have the server read and write a file. A user must be able
// to do it without the server: as the file's owner, as root, or as everybody. Permissions of
// groups and access control lists do not count. A user who is not known needs permissions for
// everybody or, with reserved, a name that --client-shm-prefix reserves for such callers. Of
// two names of a file that is so reserved the other one may be anybody's (link(2)).
func mayUse(u user, f *file, reserved bool) bool {
	switch {
	case f.mode&everybody == everybody:
		return true
	case u.known:
		return u.uid == 0 || u.uid == f.uid
	}
	return reserved && f.links <= 1
}
