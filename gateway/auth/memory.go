package auth

import "github.com/sluice-serve/sluice/infer"

// ClientMemory says whose calls about shared memory are looked at at all, before rights:
// whoever may make them could name memory of others on this host. It is the one place
// that says so.
// Source: --allow-client-shm of the original, which is false where it is not given; here
// callers of this host are not refused then.
type ClientMemory uint8

// The values of ClientMemory.
const (
	ClientMemoryLocal ClientMemory = iota // callers of this host, by nobody on behalf of another
	ClientMemoryNone
	ClientMemoryAll
)

func (m ClientMemory) allows(env *infer.Envelope) bool {
	return m == ClientMemoryAll || m == ClientMemoryLocal && local(env)
}

// errNoClientMemory has the words of the original's 2.73.
var errNoClientMemory = infer.Errorf(infer.Unsupported,
	"Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")

// Local says that a call was made on this host, by nobody on behalf of another. Its
// Header must be valid.
func Local(env *infer.Envelope) bool { return local(env) }
