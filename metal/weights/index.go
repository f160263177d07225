package weights

import (
	"bytes"
	"fmt"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
)

// readIndex reads which file holds which tensor.
func readIndex(dir *folder.Folder, memory *account) (map[string]string, error) {
	size, err := bytesOf(dir, indexFile)
	if err != nil {
		return nil, err
	}
	size = min(size, maxIndexBytes) // no more is read
	if err := memory.take(jsonMemory*size, 0); err != nil {
		return nil, err
	}
	defer memory.free((jsonMemory - 1) * size) // names stay
	text, err := dir.Read(indexFile, size)
	if err != nil {
		return nil, folderError(err)
	}
	entries := min(bytes.Count(text, []byte(":")), maxShardTensors)
	if err := memory.take(2*keyMemory*int64(entries), 0); err != nil { // of tensors, and of files
		return nil, err
	}
	return parseIndex(text)
}

func bytesOf(dir *folder.Folder, name string) (int64, error) {
	f, err := dir.File(name)
	if err != nil {
		return 0, folderError(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return st.Size(), nil
}

func parseIndex(text []byte) (map[string]string, error) {
	j := newJSONReader(text, 0)
	var index map[string]string
	err := j.object(func(key string) error {
		if key != "weight_map" {
			return j.skip()
		}
		index = map[string]string{}
		return j.object(func(name string) error {
			if len(index) == maxShardTensors || len(name) > maxNameBytes {
				return j.invalid(fmt.Sprintf("more than %d tensors, or a name of more than %d bytes", maxShardTensors, maxNameBytes))
			}
			t, err := j.token()
			file, ok := t.(string)
			if err == nil && (!ok || file == "" || len(file) > maxNameBytes) {
				return j.invalid("is not a string " + family.Quoted(name) + " is not a name")
			}
			index[name] = file
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if index == nil {
		return nil, fmt.Errorf("weight_map: %w", ErrMissing)
	}
	return index, j.end()
}
