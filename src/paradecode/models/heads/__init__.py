"""Draft heads on disk: folders in published forms, which are read into networks and written
again."""

from paradecode.models.heads.build import build_head as build_head
from paradecode.models.heads.files import read_head as read_head
from paradecode.models.heads.layouts import HeadFile as HeadFile
