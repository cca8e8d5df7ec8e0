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

func (a *Auth) allowsMemory(id asking, m ClientMemory, env *infer.Envelope) bool {
	return m == ClientMemoryAll || m == ClientMemoryLocal && local(env) && !a.isProxy(id, env)
}

// isProxy says that a call comes from one whom the identity file trusts to speak for
// others, who need not be on this host, whether or not a header tells.
func (a *Auth) isProxy(id asking, env *infer.Envelope) bool {
	if !id.on {
		return false
	}
	if !id.byProxy && id.trusted.near(env) {
		return true
	}
	if env.Certificate == nil || id.trusted.names == nil {
		return false
	}
	holder, err := a.holder(id, env.Certificate)
	return err != nil || holder.proxy // one that has expired is nobody's
}

// errNoClientMemory has the words of the original's 2.73.
var errNoClientMemory = infer.Errorf(infer.Unsupported,
	"Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")

// Local says that a call was made on this host, by nobody on behalf of another. Its
// Header must be valid.
func (a *Auth) Local(env *infer.Envelope) bool {
	epoch := a.epoch.Load()
	return local(env) && !a.isProxy(asking{identity: a.state.Load().identity, epoch: epoch}, env)
}
