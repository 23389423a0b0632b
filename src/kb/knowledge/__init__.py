"""rules/ and i18n/ on disk, read into frozen objects; schemas, the compiled bundle and the version lock."""
