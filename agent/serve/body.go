package serve

import (
	"net/http"

	"metalfleet.dev/metalfleet/api/openai"
)

// objectBytes is what an object of a body, such as a message of few bytes, takes once it is
// decoded: 341 to 690 bytes, by route.
const objectBytes = 768

// readBody reads a request body. Its memory, and what its objects take once they are decoded,
// counts against their owner until release is called, which may be called again.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	owner := ownerOf(r.Header)
	var ends []func()
	release = func() {
		for _, end := range ends {
			end()
		}
	}
	body, err = h.ReadBody(w, r, func(interrupt func()) ([]byte, error) {
		body, end, err := h.bodies.Read(r.Body, owner, r.ContentLength, h.MaxBodyBytes, interrupt)
		if err == nil {
			ends = append(ends, end)
		}
		return body, err
	})
	if err == nil {
		var end func()
		if end, err = h.bodies.Hold(owner, objectBytes*int64(objects(body))); err == nil {
			ends = append(ends, end)
		}
	}
	if err != nil {
		release()
	}
	return body, release, err
}

// decodedDepth is how deep the objects are that are decoded: messages, their parts and calls, and
// the functions of these. Deeper ones, such as schemas of tools, stay JSON.
const decodedDepth = 4

// objects counts the objects of a body that are decoded, up to as many as a request may have.
func objects(body []byte) (n int) {
	depth, inString := 0, false
	for i := 0; i < len(body) && n < openai.MaxParts; i++ {
		switch c := body[i]; {
		case c == '"':
			inString = !inString
		case c == '\\' && inString:
			i++
		case inString:
		case c == '}':
			depth--
		case c == '{':
			if depth++; depth <= decodedDepth {
				n++
			}
		}
	}
	return n
}
