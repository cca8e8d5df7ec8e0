package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// sharedMemory is a file with the input, and room for the output of each connection.
type sharedMemory struct {
	address string
	file    string
	input   int64 // bytes
}

// share writes the file and registers it.
func share(ctx context.Context, o options) (*sharedMemory, error) {
	data := tensor(o.shape)
	f, err := os.CreateTemp("/dev/shm", "loadgen-")
	if err != nil {
		return nil, err
	}
	m := &sharedMemory{address: o.address, file: f.Name(), input: int64(len(data))}
	size := m.input + o.outputBytes*int64(o.concurrency)
	_, err = f.Write(data)
	if err == nil {
		err = f.Truncate(size)
	}
	if errClose := f.Close(); err == nil {
		err = errClose
	}
	if err == nil {
		var body []byte
		if body, err = json.Marshal(map[string]any{"key": "/" + filepath.Base(m.file), "offset": 0, "byte_size": size}); err == nil {
			err = m.post(ctx, "register", body)
		}
	}
	if err != nil {
		m.remove()
		return nil, err
	}
	return m, nil
}

func (m *sharedMemory) post(ctx context.Context, verb string, body []byte) error {
	url := fmt.Sprintf("http://%s/v2/systemsharedmemory/region/%s/%s", m.address, filepath.Base(m.file), verb)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", verb, response.Status, text)
	}
	return err
}

// remove takes the file's name away. The region goes with the server, or with the next
// unregister of all.
func (m *sharedMemory) remove() { _ = os.Remove(m.file) }

// request is a whole request of connection i whose tensors lie in the region.
func (m *sharedMemory) request(o options, i int) []byte {
	type place struct {
		Region string `json:"shared_memory_region"`
		Size   int64  `json:"shared_memory_byte_size"`
		Offset int64  `json:"shared_memory_offset"`
	}
	type placed struct {
		Name       string  `json:"name"`
		Shape      []int64 `json:"shape,omitempty"`
		Datatype   string  `json:"datatype,omitempty"`
		Parameters any     `json:"parameters"`
	}
	region := filepath.Base(m.file)
	document := struct {
		Parameters map[string]bool `json:"parameters,omitempty"`
		Inputs     []placed        `json:"inputs"`
		Outputs    []placed        `json:"outputs,omitempty"`
	}{Inputs: []placed{{o.input, o.shape, "FP32", place{region, m.input, 0}}}}
	if o.outputBytes > 0 {
		document.Outputs = []placed{{Name: o.output, Parameters: place{region, o.outputBytes, m.input + int64(i)*o.outputBytes}}}
	} else {
		document.Parameters = map[string]bool{"binary_data_output": true}
	}
	body, err := json.Marshal(document)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	request := fmt.Appendf(nil, "POST /v2/models/%s/infer HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		o.model, o.address, len(body))
	return append(request, body...)
}
