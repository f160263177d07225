package openai

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

// Image is an image of a request, as it is encoded.
type Image struct {
	Data []byte
	// Param is the field that has the image.
	Param string
}

// ImageURL reads a data URL, or fetches an image from an https URL if the decoder may.
func (d *Decoder) ImageURL(to *Image) Field {
	return func(param string, raw json.RawMessage) error {
		var text string
		if err := String(&text)(param, raw); err != nil {
			return err
		}
		to.Param = param
		scheme, rest, found := strings.Cut(text, ":")
		switch _, data, encoded := strings.Cut(rest, ";base64,"); {
		case strings.EqualFold(scheme, "data") && encoded:
			return to.decode(param, data)
		case !found || !strings.EqualFold(scheme, "https"):
			return Invalid(param, "'%s' must be a data URL with base64 (data:image/png;base64,...) or an https URL.", param)
		case d.FetchImage == nil:
			return Unsupported(param, "This server does not fetch images from URLs; send the image as a data URL (data:image/png;base64,...).")
		}
		var err error
		if to.Data, err = d.FetchImage(text); err != nil {
			if refusal := (*Error)(nil); errors.As(err, &refusal) {
				return refusal
			}
			return Invalid(param, "The image in '%s' cannot be fetched: %v.", param, err)
		}
		return nil
	}
}

// DataURL is the image as a data URL.
func (m *Image) DataURL() string {
	return "data:" + http.DetectContentType(m.Data) + ";base64," + base64.StdEncoding.EncodeToString(m.Data)
}

// FromDataURL returns the image of a URL that DataURL made; ok is false for other URLs.
func FromDataURL(url string) (m Image, ok bool) {
	_, data, found := strings.Cut(url, ";base64,")
	ok = found && m.decode("", data) == nil
	return m, ok
}

// ImageData reads the bytes of an image in base64.
func ImageData(to *Image) Field {
	return func(param string, raw json.RawMessage) error {
		var text string
		if err := String(&text)(param, raw); err != nil {
			return err
		}
		to.Param = param
		return to.decode(param, text)
	}
}

func (m *Image) decode(param, text string) error {
	var err error
	if m.Data, err = base64.StdEncoding.DecodeString(text); err != nil {
		m.Data, err = base64.RawStdEncoding.DecodeString(text)
	}
	if err != nil || len(m.Data) == 0 {
		return Invalid(param, "The image in '%s' is not valid base64.", param)
	}
	return nil
}

// imageUnused are the fields of an image without effect.
var imageUnused = []Unused{{Name: "detail", Why: WhyDetail, Neutral: []string{`"auto"`}}}

// imageURL reads the object of an image_url part.
func (d *Decoder) imageURL(to **Image) Field {
	return func(param string, raw json.RawMessage) error {
		*to = new(Image)
		err := d.Object(raw, param, map[string]Field{"url": d.ImageURL(*to)}, imageUnused)
		if err == nil && (*to).Param == "" {
			return required(param + ".url")
		}
		return err
	}
}
