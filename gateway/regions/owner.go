package regions

import (
	"os"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// The kinds of owners, in metrics.
const (
	kindPrincipal = iota
	kindUser      // of this host
	kindLocal     // nobody in particular, on this host
	kindRemote    // nobody in particular, elsewhere
	numKinds
)

// Kinds names the kinds of owners in the order of Figures.
var kinds = [numKinds]string{"principal", "user", "loopback", "remote"}

// owner is to whom a caller's regions belong.
type owner struct {
	kind int
	name string // of a principal
	uid  uint32 // of a user
}

// unknownUnix is the name of nobody in particular over a Unix socket.
const unknownUnix = "unix"

// owner is to whom the regions of a call's caller belong. env's Header must be valid.
func (r *Registry) owner(env *infer.Envelope) owner {
	if name := principalOf(env); name != "" {
		return owner{kind: kindPrincipal, name: name}
	}
	return r.user(env).owner()
}

// principalOf is the name of a call's principal; "": none is known.
func principalOf(env *infer.Envelope) string {
	if env.Principal == nil {
		return ""
	}
	return env.Principal.Name
}

// user is the user who makes a call.
type user struct {
	near  bool // the call was made on this host, by nobody on behalf of another
	unix  bool // over a Unix socket
	known bool // uid is whose call it is
	uid   uint32
}

// user asks the kernel who makes a call. Of a call that comes through a proxy the user is
// not known: the kernel's word is on the proxy.
func (r *Registry) user(env *infer.Envelope) user {
	u := user{near: r.local(env), unix: env.Unix}
	if u.near {
		u.uid, u.known = env.Peer.User()
		u.known = u.known && (u.uid != r.shared.uid || !r.shared.on)
	}
	return u
}

// owner is to whom the regions of a user belong who is no principal.
func (u user) owner() owner {
	switch {
	case !u.near:
		return owner{kind: kindRemote}
	case u.known:
		return owner{kind: kindUser, uid: u.uid}
	case u.unix:
		return owner{kind: kindLocal, name: unknownUnix}
	}
	return owner{kind: kindLocal}
}

// sharedUID is the user that the kernel names in place of all users whom the user namespace
// of this process does not have.
// Source: "Unmapped user and group IDs", user_namespaces(7).
type sharedUID struct {
	on  bool // there are such users
	uid uint32
}

// readSharedUID finds it out. What can't be read is taken as is usual in a container.
func readSharedUID() sharedUID {
	s := sharedUID{on: true, uid: 65534}
	if b, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			s.uid = uint32(n)
		}
	}
	if b, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		s.on = strings.Join(strings.Fields(string(b)), " ") != "0 0 4294967295"
	}
	return s
}
