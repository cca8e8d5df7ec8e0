package repository

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"os"
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// callFiles are the files of a load call in a folder of their own. They are written while the
// caller still waits, so that their bytes are held no longer than the call's body is counted; a
// load may wait, and go on, for much longer. The folder is removed once, by the lease that took it
// or else when the call ends; until then its bytes count for the caller.
type callFiles struct {
	r      *Repository
	caller string
	size   int64
	dir    string
	sum    [sha256.Size]byte // of names and bytes
	err    error             // why they could not be written: the load is to fail with it
	taken  bool              // by a lease
}

// layDown writes a call's files, and gives the call without their bytes; without files, itself.
func (r *Repository) layDown(ctx context.Context, call *Override) (*Override, error) {
	if len(call.Files) == 0 || call.Config == nil {
		return call, nil
	}
	f := &callFiles{r: r, caller: infer.CallerOf(ctx)}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(call.Files)) {
		data := call.Files[name]
		f.size += int64(len(data))
		sum.Write(binary.LittleEndian.AppendUint64([]byte(name+"\x00"), uint64(len(data))))
		sum.Write(data)
	}
	f.sum = [sha256.Size]byte(sum.Sum(nil))
	r.mu.Lock()
	used, most := r.files[f.caller], r.cfg.loadFiles()
	if used+f.size > most {
		r.mu.Unlock()
		return nil, infer.Refusef(infer.ResourceExhausted, infer.ReasonTooLarge, "the files of this load call have %d bytes, and those of the "+
			"caller's models %d, the most of --model-load-files-byte-size is %d", f.size, used, most)
	}
	r.files[f.caller] = used + f.size
	r.mu.Unlock()
	if f.err = call.check(); f.err == nil {
		f.dir, f.err = r.scratch.folder()
	}
	if f.err == nil {
		f.err = call.write(ctx, f.dir)
	}
	return &Override{Config: call.Config, written: f}, nil
}

// take gives the folder to a lease, which removes it.
func (f *callFiles) take() string {
	f.taken = true
	return f.dir
}

// remove ends the folder.
func (f *callFiles) remove() error {
	f.r.mu.Lock()
	if f.r.files[f.caller] -= f.size; f.r.files[f.caller] == 0 {
		delete(f.r.files, f.caller)
	}
	f.r.mu.Unlock()
	if f.dir == "" {
		return nil
	}
	return os.RemoveAll(f.dir)
}

// drop removes the folder of a call whose load took none.
func (o *Override) drop() error {
	if o.written == nil || o.written.taken {
		return nil
	}
	return o.written.remove()
}

// same says that two calls bring the same.
func (o *Override) same(p *Override) bool {
	if o.Config == nil || p.Config == nil {
		return o.empty() && p.empty()
	}
	if o.hasFiles() != p.hasFiles() || *o.Config != *p.Config {
		return false
	}
	return o.written == nil || p.written == nil || o.written.sum == p.written.sum
}
