package httpapi

import (
	"context"
	"encoding/base64"
	"math"
	"os"
	"strconv"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
)

// memoryVerb is what a call about regions wants.
type memoryVerb uint8

const (
	memoryStatus memoryVerb = iota
	memoryRegister
	memoryUnregister
)

// memoryCall answers a call about regions.
// Source of routes and texts: the shared memory extensions in the original 2.51.
func (a *API) memoryCall(ctx context.Context, call *Call, rt route, reply *Reply) error {
	if a.regions == nil {
		return infer.ErrNoRegions()
	}
	switch {
	case rt.verb == memoryStatus:
		all, err := a.regions.Status(call.env, rt.cuda, rt.region)
		if err != nil {
			return err
		}
		reply.json(appendRegions(reply.buf[:0], all, rt.cuda))
		return nil
	case rt.verb == memoryRegister:
		if err := a.register(ctx, call, rt); err != nil {
			return err
		}
	case rt.region == "":
		if err := a.regions.UnregisterAll(ctx, call.env, rt.cuda); err != nil {
			return err
		}
	default:
		if err := a.regions.Unregister(ctx, call.env, rt.cuda, rt.region); err != nil {
			return err
		}
	}
	reply.empty(200)
	return nil
}

// register reads a registration. A call without a key may bring a descriptor in its place.
func (a *API) register(ctx context.Context, call *Call, rt route) error {
	spec := regions.Spec{Name: rt.region}
	kind := "system"
	if rt.cuda {
		kind = "cuda"
	}
	if rt.region == "" {
		return infer.Errorf(infer.InvalidArg, "'region name' is necessary to register %s shared memory region", kind)
	}
	body, err := a.document(ctx, call)
	if err != nil {
		return err
	}
	if rt.cuda {
		err = cudaSpec(body, &spec)
	} else {
		err = systemSpec(body, &spec, call.file)
	}
	if err != nil {
		if spec.File != nil {
			_ = spec.File.Close() // nothing was done with it
		}
		return err
	}
	return a.regions.Register(ctx, call.env, spec)
}

// file is the descriptor that came with the call; nil: none did. The caller owns it.
func (c *Call) file() (*os.File, error) {
	if c.Descriptor == nil {
		return nil, nil
	}
	f, err := c.Descriptor.TakeFile()
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "a call about a shared memory region brings one descriptor at most")
	}
	return f, nil
}

// registration is what a document says of a region.
type registration struct {
	seen   member
	handle bool // raw_handle has a b64
	base64 string
	device uint64
}

const (
	memberKey member = 1 << iota
	memberSize
	memberHandle
	memberDevice
)

// systemSpec reads the document of a system region.
func systemSpec(body []byte, spec *regions.Spec, file func() (*os.File, error)) error {
	var r registration
	err := members(body, func(s *json.Scanner, key string) (err error) {
		switch key {
		case "key":
			r.seen |= memberKey
			spec.Key, err = stringOf(s)
		case "offset":
			spec.Offset, err = s.Uint()
		case "byte_size":
			r.seen |= memberSize
			spec.Size, err = s.Uint()
		default:
			err = s.Skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	if r.seen&memberKey == 0 {
		if spec.File, err = file(); err != nil {
			return err
		}
		if spec.File == nil {
			return lacks("key")
		}
	}
	if r.seen&memberSize == 0 {
		return lacks("byte_size")
	}
	return nil
}

func lacks(field string) error {
	return infer.Errorf(infer.InvalidArg, "Shared memory register request has no '%s' field", field)
}

// cudaSpec reads the document of a CUDA region.
func cudaSpec(body []byte, spec *regions.Spec) error {
	var r registration
	err := members(body, func(s *json.Scanner, key string) (err error) {
		switch key {
		case "raw_handle":
			r.seen |= memberHandle
			err = r.rawHandle(s)
		case "device_id":
			r.seen |= memberDevice
			r.device, err = s.Uint()
		case "byte_size":
			r.seen |= memberSize
			spec.Size, err = s.Uint()
		default:
			err = s.Skip()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case r.seen&memberHandle == 0:
		return lacks("raw_handle")
	case !r.handle:
		return absentMember("b64")
	}
	handle := &infer.CUDAHandle{Device: int(min(r.device, math.MaxInt32))}
	raw, err := base64.StdEncoding.DecodeString(r.base64)
	switch {
	case r.seen&memberSize == 0:
		return absentMember("byte_size")
	case r.seen&memberDevice == 0:
		return absentMember("device_id")
	case err != nil || len(raw) != len(handle.Raw):
		return infer.Errorf(infer.InvalidArg, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
	}
	copy(handle.Raw[:], raw)
	spec.CUDA = handle
	return nil
}

func absentMember(name string) error {
	return infer.CallerErrorf("attempt to access non-existing object member '%s'", name)
}

// rawHandle reads {"b64": "…"}; what is no object has no members.
func (r *registration) rawHandle(s *json.Scanner) error {
	if s.Kind() != json.Object {
		return s.Skip()
	}
	err, meaning := each(s, func(s *json.Scanner, key string) (err error) {
		if key != "b64" || r.handle {
			return s.Skip()
		}
		r.handle = true
		r.base64, err = stringOf(s)
		return err
	})
	if err == nil {
		err = meaning
	}
	return err
}

func stringOf(s *json.Scanner) (string, error) {
	if s.Kind() != json.String {
		if err := s.Skip(); err != nil {
			return "", err
		}
		return "", &json.Error{Text: json.NotString}
	}
	b, err := s.Str()
	return string(b), err
}

// appendRegions writes a list of regions.
func appendRegions(b []byte, all []regions.Status, cuda bool) []byte {
	b = append(b, '[')
	for i := range all {
		s := &all[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = json.AppendString(append(b, `{"name":`...), s.Name)
		if cuda {
			b = strconv.AppendInt(append(b, `,"device_id":`...), int64(s.Device), 10)
		} else {
			b = json.AppendString(append(b, `,"key":`...), s.Key)
			b = strconv.AppendInt(append(b, `,"offset":`...), s.Offset, 10)
		}
		b = append(strconv.AppendInt(append(b, `,"byte_size":`...), s.Size, 10), '}')
	}
	return append(b, ']')
}
