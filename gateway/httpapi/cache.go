package httpapi

import (
	"context"
	"strconv"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// cacheFields says what the response cache did for an answer.
// Source: RFC 9211 (Cache-Status), RFC 9111 (Age).
func (r *Reply) cacheFields(resp *infer.Response) {
	if resp.Cache == infer.CacheNone {
		return
	}
	r.Set("Cache-Status", resp.Cache.Header())
	if resp.Cache == infer.CacheHit {
		r.Set("Age", strconv.FormatInt(int64(resp.Age/time.Second), 10))
	}
}

// purge removes answers from the response cache: {"model", "version", "tag"}, each a
// string that may be left out; the answer is {"purged": n}. What it does not know is
// refused, since a wrong name would purge more than was asked for.
func (a *API) purge(ctx context.Context, call *Call, reply *Reply) error {
	body, err := a.document(ctx, call)
	if err != nil {
		return err
	}
	var model, version, tag string
	if len(body) > 0 {
		err = members(body, func(s *json.Scanner, key string) error {
			into := map[string]*string{"model": &model, "version": &version, "tag": &tag}[key]
			if into == nil || s.Kind() != json.String {
				if err := s.Skip(); err != nil {
					return err
				}
				if into != nil {
					return &json.Error{Text: json.NotString}
				}
				return infer.Errorf(infer.InvalidArg, "unknown member '%s': want model, version, tag", clip(key))
			}
			text, err := s.Str()
			*into = string(text)
			return err
		})
		if err != nil { // the original says Internal of what is no JSON; this call is ours
			return infer.Errorf(infer.InvalidArg, "%w", err)
		}
	}
	n, err := a.control.PurgeCache(ctx, model, version, tag)
	if err != nil {
		return err
	}
	reply.json(append(strconv.AppendInt(append(reply.buf[:0], `{"purged":`...), n, 10), '}'))
	return nil
}
