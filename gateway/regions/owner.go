package regions

import (
	"strconv"

	"github.com/sluice-serve/sluice/infer"
)

// The kinds of owners, in metrics.
const (
	kindPrincipal = iota
	kindUser      // of a Unix socket
	kindLocal     // nobody in particular, on this host
	kindRemote    // nobody in particular, elsewhere
	numKinds
)

// Kinds names the kinds of owners in the order of Figures.
var kinds = [numKinds]string{"principal", "unix", "loopback", "remote"}

// owner is to whom a caller's regions belong. Names of different kinds differ.
func (r *Registry) owner(env *infer.Envelope) (name string, kind int) {
	switch {
	case env.Principal != nil && env.Principal.Name != "":
		return "p" + env.Principal.Name, kindPrincipal
	case !r.local(env):
		return "r", kindRemote
	case env.Peer.Known:
		return "u" + strconv.FormatUint(uint64(env.Peer.UID), 10), kindUser
	case env.Unix:
		return "u", kindUser // the transport does not know whose it is
	}
	return "l", kindLocal
}

func kindOf(owner string) int {
	switch owner[0] {
	case 'p':
		return kindPrincipal
	case 'u':
		return kindUser
	case 'l':
		return kindLocal
	}
	return kindRemote
}
