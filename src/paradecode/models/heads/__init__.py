"""Draft heads on disk: read published folders of heads into networks, and write them."""

from paradecode.models.heads.build import build_head as build_head
from paradecode.models.heads.files import read_head as read_head
from paradecode.models.heads.layouts import HeadFile as HeadFile
