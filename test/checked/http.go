package checked

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
)

// HeaderLength names the header with the length of the JSON before binary tensors.
// Source: the binary tensor data extension of the v2 protocol.
const HeaderLength = "Inference-Header-Content-Length"

// StatusError is an HTTP answer with a status other than 200.
type StatusError struct {
	Status int
	Reason string // of X-Sluice-Reason; "" without
	Text   []byte // the body
}

// Error is the status and the beginning of the body.
func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %.300s", e.Status, e.Text) }

// Post is one HTTP exchange; headers are names and values in turn. A status other than 200
// is a *StatusError.
func Post(ctx context.Context, c *http.Client, url string, body []byte,
	headers ...string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = &StatusError{res.StatusCode, res.Header.Get("X-Sluice-Reason"), got}
	}
	return res, got, err
}

// Answer is an answer of the v2 protocol in JSON, with INT32 outputs.
type Answer struct {
	Version string `json:"model_version"`
	Outputs []struct {
		Name  string
		Shape []int64
		Data  []int32
	}
}

// ReadAnswer decodes an answer in JSON.
func ReadAnswer(body []byte) (a Answer, err error) {
	if err := json.Unmarshal(body, &a); err != nil {
		return a, Wrongf("no JSON: %v", err)
	}
	return a, nil
}

// Output is the content of the one output.
func (a *Answer) Output() ([]int32, error) {
	if len(a.Outputs) != 1 {
		return nil, Wrongf("answered %.300s, want one output", fmt.Sprint(a.Outputs))
	}
	return a.Outputs[0].Data, nil
}

// Check compares the one output with what is due.
func (a *Answer) Check(want []int32) error {
	if len(a.Outputs) != 1 || !slices.Equal(a.Outputs[0].Data, want) {
		return Wrongf("answered %.300s, want %.300s", fmt.Sprint(a.Outputs), fmt.Sprint(want))
	}
	return nil
}

// JSONRequest is a body in JSON with the input INPUT0.
func JSONRequest(shape []int, v []int32) []byte {
	input := map[string]any{"name": "INPUT0", "shape": shape, "datatype": "INT32", "data": v}
	body, err := json.Marshal(map[string]any{"inputs": []any{input}})
	if err != nil {
		panic(err) // there is nothing in it that JSON lacks
	}
	return body
}

// BinaryRequest is a body with the input INPUT0 as a binary tensor, which wants OUTPUT0 so
// too, and the value of HeaderLength.
func BinaryRequest(rows int, v []int32) (body []byte, head string) {
	text := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","shape":[%d,%d],"datatype":"INT32",`+
		`"parameters":{"binary_data_size":%d}}],`+
		`"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`, rows, len(v)/rows, 4*len(v))
	return append([]byte(text), Raw(v)...), strconv.Itoa(len(text))
}

// BinaryAnswer divides the body of an answer into its JSON and its binary tensor.
func BinaryAnswer(res *http.Response, got []byte) (text, tensor []byte, err error) {
	n, err := strconv.Atoi(res.Header.Get(HeaderLength))
	if err != nil || n < 0 || n > len(got) {
		return nil, nil, Wrongf("header length %q of %d bytes", res.Header.Get(HeaderLength), len(got))
	}
	return got[:n], got[n:], nil
}

// Step is one request of a sequence: ID, its flags, and the value that is summed up.
type Step struct {
	ID         any // uint64 or string
	Start, End bool
	Value      int32
}

// JSON is the body of a step for an accumulator: VALUE in, SUM out.
func (s Step) JSON() []byte {
	id, err := json.Marshal(s.ID)
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return fmt.Appendf(nil, `{"parameters":{"sequence_id":%s,"sequence_start":%t,"sequence_end":%t},`+
		`"inputs":[{"name":"VALUE","shape":[1,1],"datatype":"INT32","data":[%d]}]}`,
		id, s.Start, s.End, s.Value)
}
