package programs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"jpintel/store"
)

// The portal's fields that become fields of ours. Those that its list and its
// details have beside them are kept under their own names.
//
//	id                             unified_id, "UNI-" before it
//	title                          primary_name
//	target_area_search             prefectures, and by them authority_level
//	subsidy_max_limit              amount_max_man_yen: yen, 0 where none is stated
//	acceptance_start_datetime      application_window.start
//	acceptance_end_datetime        application_window.end
//	front_subsidy_detail_page_url  source_url
const (
	jgrantsID    = "id"
	jgrantsTitle = "title"
	jgrantsArea  = "target_area_search"
	jgrantsLimit = "subsidy_max_limit"
	jgrantsStart = "acceptance_start_datetime"
	jgrantsEnd   = "acceptance_end_datetime"
	jgrantsURL   = "front_subsidy_detail_page_url"
)

const (
	idPrefix   = "UNI-"
	yenPerUnit = 10_000
)

// jgrantsAttachments are documents in the details, megabytes of base64.
var jgrantsAttachments = []string{"application_guidelines", "outline_of_grant", "application_form"}

// fromJGrants turns a record of the portal into members of a program. What the
// record does not have is not in them either. It changes members.
func fromJGrants(members map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	var id string
	if text, ok := members[jgrantsID]; !ok || json.Unmarshal(text, &id) != nil || id == "" {
		return nil, store.Errorf(store.CodeInvalid, "id: want a string")
	}
	delete(members, jgrantsID)
	members[fieldID] = encode(idPrefix + id)
	rename(members, jgrantsTitle, fieldName)
	rename(members, jgrantsURL, fieldURL)
	renameWindow(members)
	for _, name := range jgrantsAttachments {
		if text, ok := members[name]; ok {
			members[name] = withoutData(text)
		}
	}
	if err := renameArea(members); err != nil {
		return members, err
	}
	return members, renameLimit(members)
}

// rename moves a member. An empty text is the portal's way to say nothing.
func rename(members map[string]json.RawMessage, from, to string) {
	value, ok := members[from]
	if !ok {
		return
	}
	delete(members, from)
	members[to] = nullIfEmpty(value)
}

func nullIfEmpty(value json.RawMessage) json.RawMessage {
	if string(value) == `""` {
		return null
	}
	return value
}

func renameWindow(members map[string]json.RawMessage) {
	window := object{}
	for from, to := range map[string]string{jgrantsStart: "start", jgrantsEnd: "end"} {
		if value, ok := members[from]; ok {
			window[to] = nullIfEmpty(value)
			delete(members, from)
		}
	}
	if len(window) > 0 {
		members[fieldWindow] = window.encode()
	}
}

func renameArea(members map[string]json.RawMessage) error {
	text, ok := members[jgrantsArea]
	if !ok {
		return nil
	}
	delete(members, jgrantsArea)
	var joined *string
	if json.Unmarshal(text, &joined) != nil {
		return store.Errorf(store.CodeInvalid, "%s: want a text", jgrantsArea)
	}
	members[fieldPrefectures] = null
	if joined == nil {
		return nil
	}
	if area := splitArea(*joined); len(area) > 0 {
		members[fieldPrefectures] = encode(area)
	}
	return nil
}

// splitArea splits "大阪府 / 京都府" of lists and "大阪府/京都府" of details.
func splitArea(joined string) []string {
	var area []string
	for part := range strings.SplitSeq(joined, "/") {
		if part = strings.TrimSpace(part); part != "" && !slices.Contains(area, part) {
			area = append(area, part)
		}
	}
	return area
}

func renameLimit(members map[string]json.RawMessage) error {
	text, ok := members[jgrantsLimit]
	if !ok {
		return nil
	}
	delete(members, jgrantsLimit)
	members[fieldAmount] = null
	if isNull(text) {
		return nil
	}
	yen, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || yen < 0 {
		return store.Errorf(store.CodeInvalid, "%s: want a whole number of yen, 0 or more", jgrantsLimit)
	}
	if yen > 0 {
		members[fieldAmount] = strconv.AppendInt(nil, yen/yenPerUnit, 10)
	}
	return nil
}

// withoutData puts in the place of each attachment's content its SHA-256: what
// a document holds is nothing to store here, that it changed is worth telling.
func withoutData(text json.RawMessage) json.RawMessage {
	var all []map[string]json.RawMessage
	if json.Unmarshal(text, &all) != nil || bytes.Equal(text, null) {
		return text
	}
	for _, attachment := range all {
		if data, ok := attachment["data"]; ok && !isNull(data) {
			sum := sha256.Sum256(data)
			attachment["data_sha256"] = encode(hex.EncodeToString(sum[:]))
			delete(attachment, "data")
		}
	}
	return encode(all)
}
