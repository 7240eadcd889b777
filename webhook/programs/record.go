package programs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"jpintel/store"
)

// The names of the source fields that this package knows. All others are kept
// as they come.
const (
	fieldName        = "primary_name"
	fieldLevel       = "authority_level"
	fieldPrefectures = "prefectures"
	fieldAmount      = "amount_max_man_yen"
	fieldURL         = "source_url"
	fieldWindow      = "application_window"
	fieldTargets     = "target_types"

	fieldID = "unified_id" // names the record; not a source field
)

// maxName is the longest primary_name in bytes; an event's data must hold it.
const maxName = 4 << 10

// record is one program as it came in: checked, not yet compared.
type record struct {
	id      string
	fields  object // null: the field is to be cleared
	replace bool   // a field that is not in fields is cleared too
}

// readObject splits a JSON object into its members, as they were written.
func readObject(text []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(text) {
		return nil, store.Errorf(store.CodeInvalid, "not valid UTF-8")
	}
	var members map[string]json.RawMessage
	err := json.Unmarshal(text, &members)
	if _, syntax := err.(*json.SyntaxError); syntax {
		return nil, store.Errorf(store.CodeInvalid, "not JSON: %v", err)
	}
	if err != nil || members == nil {
		return nil, store.Errorf(store.CodeInvalid, "want a JSON object")
	}
	return members, nil
}

// newRecord makes a record of a program's members; it takes unified_id out of
// them. The id is returned with an error too, where there is one.
func newRecord(members map[string]json.RawMessage) (record, error) {
	var r record
	if text, ok := members[fieldID]; !ok || json.Unmarshal(text, &r.id) != nil {
		return r, store.Errorf(store.CodeInvalid, "unified_id: want a string")
	}
	if err := checkID(fieldID, r.id); err != nil {
		return r, err
	}
	delete(members, fieldID)
	fields, err := checkFields(members)
	if err == nil {
		err = fields.checkSize()
	}
	if err == nil {
		r.fields = fields // what is refused is not kept for its batch
	}
	return r, err
}

// checkFields brings source fields into canonical form. Its error names the
// first field, in the order of their names, that is not as it should be.
func checkFields(members map[string]json.RawMessage) (object, error) {
	fields := make(object, len(members))
	var first string
	var firstErr error
	for name, text := range members {
		value, err := checkField(name, text)
		if err != nil && (firstErr == nil || name < first) {
			first, firstErr = name, err
		}
		fields[name] = value
	}
	return fields, firstErr
}

func checkField(name string, text json.RawMessage) (json.RawMessage, error) {
	if name == "" || strings.ContainsFunc(name, unicode.IsControl) {
		return nil, store.Errorf(store.CodeInvalid, "%s: want field names that are not empty and have no control characters", strconv.Quote(name))
	}
	value, err := canonical(text)
	if err != nil {
		return nil, store.Errorf(store.CodeInvalid, "%s: %v", name, err)
	}
	if check := checks[name]; check != nil && !isNull(value) {
		if value, err = check(value); err != nil {
			return nil, store.Errorf(store.CodeInvalid, "%s: %v", name, err)
		}
	}
	return value, nil
}

// checks say what the known fields must be, null aside, and may bring a value
// into the one form in which it is stored.
var checks = map[string]func(json.RawMessage) (json.RawMessage, error){
	fieldName:        checkName,
	fieldLevel:       checkLevel,
	fieldPrefectures: checkTexts,
	fieldTargets:     checkTexts,
	fieldAmount:      checkAmount,
	fieldURL:         checkSourceURL,
	fieldWindow:      checkWindow,
}

func checkName(value json.RawMessage) (json.RawMessage, error) {
	if name, ok := textOf(value); !ok || strings.TrimSpace(name) == "" || len(name) > maxName {
		return nil, fmt.Errorf("want a text of 1 to %d bytes", maxName)
	}
	return value, nil
}

func checkLevel(value json.RawMessage) (json.RawMessage, error) {
	if level, ok := textOf(value); !ok || !slices.Contains(levels, level) {
		return nil, fmt.Errorf("want %s", strings.Join(levels, ", "))
	}
	return value, nil
}

func checkTexts(value json.RawMessage) (json.RawMessage, error) {
	var texts []*string
	if json.Unmarshal(value, &texts) != nil || slices.ContainsFunc(texts, func(s *string) bool { return s == nil || *s == "" }) {
		return nil, fmt.Errorf("want a list of texts that are not empty")
	}
	return value, nil
}

func checkAmount(value json.RawMessage) (json.RawMessage, error) {
	amount, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || amount < 0 {
		return nil, fmt.Errorf("want a whole number of 10,000 yen, 0 or more, or null")
	}
	return strconv.AppendInt(nil, amount, 10), nil // -0 is 0
}

func checkSourceURL(value json.RawMessage) (json.RawMessage, error) {
	if text, ok := textOf(value); !ok || checkURL(fieldURL, text) != nil {
		return nil, fmt.Errorf("want an http or https URL of at most %d bytes", maxURL)
	}
	return value, nil
}

// checkWindow checks start and end. Other members are kept as they come.
func checkWindow(value json.RawMessage) (json.RawMessage, error) {
	if !bytes.HasPrefix(value, []byte("{")) {
		return nil, fmt.Errorf("want an object with start and end")
	}
	window, err := parseObject(value)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"end", "start"} {
		if window[name] == nil || isNull(window[name]) {
			continue
		}
		if _, _, ok := parseMoment(window.text(name)); !ok {
			return nil, fmt.Errorf("%s: want a date like 2026-06-30, an instant like 2026-06-30T23:45:00Z, or null", name)
		}
	}
	return value, nil
}
